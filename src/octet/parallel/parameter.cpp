#include "octet/parallel/parameter.h"

#include <utility>

#include "octet/base/rng.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::parallel {

Parameter& ParameterStore::add(ParameterSpec spec) {
  parameters_.emplace_back();
  parameters_.back().spec = std::move(spec);
  return parameters_.back();
}

std::int64_t ParameterStore::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.elements();
  return sum;
}

Tensor ParameterStore::allocate(Device& device, MemoryCategory category, DType dtype, Shape shape) {
  buffers_.push_back(device.allocate(bytes_of(dtype, shape), category));
  return view(buffers_.back(), dtype, shape);
}

void ParameterStore::materialise(Device& device, const Storage& storage) {
  require(buffers_.empty(), "parameters are materialised once");
  storage_ = storage;
  const bool master = storage.compute == DType::bf16 && storage.master_weights;
  for (Parameter& p : parameters_) {
    const Shape shape = p.spec.shape;
    if (master) p.master = allocate(device, MemoryCategory::master_weights, DType::f32, shape);
    if (!master || !p.spec.quant || p.spec.read_as_values)
      p.value = allocate(device, MemoryCategory::weights, storage.compute, shape);
    if (p.spec.quant) {
      const QuantSpec& spec = *p.spec.quant;
      const std::int64_t rows = shape[0], cols = shape[1];
      Quantized& q = p.codes;
      q.format = spec.format;
      q.tile = spec.tile;
      q.codes = allocate(device, MemoryCategory::weights, dtype_of(spec.format), {rows, cols});
      q.scale_inv = allocate(device, MemoryCategory::weights, scale_dtype(spec.tile), scale_shape(spec.tile, rows, cols));
      if (p.spec.keeps_transpose) {
        q.codes_t = allocate(device, MemoryCategory::weights, dtype_of(spec.format), {cols, rows});
        q.scale_inv_t = spec.tile == ScaleTile::tensor ? q.scale_inv
                                                       : allocate(device, MemoryCategory::weights, scale_dtype(spec.tile),
                                                                  scale_shape(spec.tile, cols, rows));
      }
    }
    if (storage.training) {
      p.grad = allocate(device, MemoryCategory::gradients, storage.grad, shape);
      p.moment1 = allocate(device, MemoryCategory::moments, storage.moments, shape);
      p.moment2 = allocate(device, MemoryCategory::moments, storage.moments, shape);
    }
  }
}

void ParameterStore::initialise(Queue& queue, std::uint64_t seed) {
  for (const Parameter& p : parameters_) {
    const bool ones = p.spec.init == Init::ones;
    kernels::fill_normal(queue, {.x = p.primary(),
                                 .mean = ones ? 1.0 : 0.0,
                                 .deviation = ones ? 0.0 : p.spec.init_std,
                                 .seed = seed,
                                 .subject = name_id(p.spec.name),
                                 .first_element = p.first_element});
  }
}

void ParameterStore::refresh(Queue& queue, Arena& scratch) {
  for (Parameter& p : parameters_) {
    if (p.master && p.value) kernels::cast(queue, {.x = p.master, .y = p.value});
  }
  refresh_codes(queue, scratch);
}

void ParameterStore::refresh_codes(Queue& queue, Arena& scratch) {
  for (Parameter& p : parameters_) {
    if (!p.spec.quant) continue;
    if (p.scale_slot.amax) queue.zero(p.scale_slot.amax, sizeof(float));
    kernels::quantize(
        queue, scratch,
        {.x = p.primary(), .spec = *p.spec.quant, .out = p.codes, .scale = p.scale_slot.scale, .amax = p.scale_slot.amax});
  }
}

void ParameterStore::zero_gradients(Queue& queue) {
  for (Parameter& p : parameters_) {
    p.grad_is_stale = p.spec.grad_from_product;
    if (!p.grad_is_stale) queue.zero(p.grad.data, p.grad.bytes());
  }
}

}  // namespace octet::parallel
