#include "octet/parallel/parameter.h"

#include <algorithm>
#include <utility>

#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::parallel {
namespace {

constexpr std::int64_t kInitGrain = 1 << 16;

// Values of [begin, end) of a parameter, on the host.
void initial_values(const ParameterSpec& spec, const Rng& rng, std::int64_t begin, std::int64_t end, DType dtype, void* out) {
  visit_float(dtype, [&]<class T>() {
    T* values = static_cast<T*>(out);
    for (std::int64_t i = begin; i < end; ++i) {
      const double value = spec.init == Init::ones ? 1.0 : spec.init_std * rng.normal(static_cast<std::uint64_t>(i));
      values[i - begin] = static_cast<T>(static_cast<float>(value));
    }
  });
}

}  // namespace

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
    if (!master || !p.spec.quant || p.spec.read_as_values) p.value = allocate(device, MemoryCategory::weights, storage.compute, shape);
    if (p.spec.quant) {
      const QuantSpec& spec = *p.spec.quant;
      const std::int64_t rows = shape[0], cols = shape[1];
      Quantized& q = p.codes;
      q.format = spec.format;
      q.tile = spec.tile;
      q.codes = allocate(device, MemoryCategory::weights, dtype_of(spec.format), {rows, cols});
      q.codes_t = allocate(device, MemoryCategory::weights, dtype_of(spec.format), {cols, rows});
      q.scale_inv = allocate(device, MemoryCategory::weights, scale_dtype(spec.tile), scale_shape(spec.tile, rows, cols));
      q.scale_inv_t = spec.tile == ScaleTile::tensor
                          ? q.scale_inv
                          : allocate(device, MemoryCategory::weights, scale_dtype(spec.tile), scale_shape(spec.tile, cols, rows));
    }
    if (storage.training) {
      p.grad = allocate(device, MemoryCategory::gradients, storage.grad, shape);
      p.moment1 = allocate(device, MemoryCategory::moments, storage.moments, shape);
      p.moment2 = allocate(device, MemoryCategory::moments, storage.moments, shape);
    }
  }
}

void ParameterStore::initialise(Queue& queue, std::uint64_t seed) {
  if (queue.kind() == DeviceKind::meta) return;
  for (Parameter& p : parameters_) {
    const Tensor& primary = p.primary();
    const Rng rng(seed, RngStream::init, name_id(p.spec.name));
    std::vector<std::byte> host(primary.bytes());
    const std::size_t width = size_of(primary.dtype);
    parallel_ranges(p.elements(), kInitGrain, [&](std::int64_t begin, std::int64_t end) {
      initial_values(p.spec, rng, p.first_element + begin, p.first_element + end, primary.dtype,
                     host.data() + static_cast<std::size_t>(begin) * width);
    });
    queue.copy_to_device(primary.data, host.data(), host.size());
    queue.synchronize();  // `host` goes; start-up only
  }
}

void ParameterStore::refresh(Queue& queue, Arena& scratch) {
  for (Parameter& p : parameters_) {
    if (p.master && p.value) kernels::cast(queue, {.x = p.master, .y = p.value});
    if (p.spec.quant) {
      if (p.scale_slot.amax) queue.zero(p.scale_slot.amax, sizeof(float));
      kernels::quantize(queue, scratch,
                        {.x = p.primary(), .spec = *p.spec.quant, .out = p.codes, .scale = p.scale_slot.scale,
                         .amax = p.scale_slot.amax});
    }
  }
}

void ParameterStore::zero_gradients(Queue& queue) {
  for (Parameter& p : parameters_) queue.zero(p.grad.data, p.grad.bytes());
}

}  // namespace octet::parallel
