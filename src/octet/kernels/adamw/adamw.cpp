#include "octet/kernels/adamw/adamw.h"

#include <utility>

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/adamw/adamw_cpu.h"
#include "octet/kernels/adamw/adamw_cuda.h"
#include "octet/kernels/adamw/fp8_moments.h"

namespace octet::kernels {
namespace {

void check_count(const char* operand, const Tensor& tensor, std::int64_t count) {
  require(tensor.elements() == count && tensor.contiguous(), "adamw: ", operand, " must be ", count, " contiguous elements, got ",
          tensor.shape, " with row stride ", tensor.row_stride);
}

void check_dtypes(const AdamW& op) {
  const DType weight = op.weight.dtype, moment = op.moment1.dtype;
  require(weight == DType::f32 || weight == DType::f64 || weight == DType::bf16, "adamw: no weights of ", name_of(weight));
  require(moment == op.moment2.dtype, "adamw: moments of ", name_of(moment), " and ", name_of(op.moment2.dtype));
  require(weight == DType::f64 ? moment == DType::f64 : moment == DType::f32 || moment == DType::bf16 || moment == DType::f8_e4m3,
          "adamw: weights of ", name_of(weight), " with moments of ", name_of(moment));
  require(!op.value || (weight == DType::f32 && op.value.dtype == DType::bf16), "adamw: a copy of ", name_of(op.value.dtype),
          " of weights of ", name_of(weight));
}

void check(const AdamW& op) {
  const std::int64_t count = op.weight.elements();
  check_count("weight", op.weight, count);
  check_count("grad", op.grad, count);
  check_count("moment1", op.moment1, count);
  check_count("moment2", op.moment2, count);
  if (op.value) check_count("value", op.value, count);
  check_dtypes(op);
  require(op.scalars != nullptr, "adamw: no scalars");
  require(op.elements.valid(), "adamw: no element has the index ", op.elements.first);
  require(op.elements.consecutive() || op.elements.in_groups_of(8), "adamw: columns [", op.elements.run, " of ",
          op.elements.stride, "] are not multiples of 8");
  const bool fp8 = op.moment1.dtype == DType::f8_e4m3;
  for (const Tensor* scale : {&op.moment1_scale, &op.moment2_scale}) {
    require(static_cast<bool>(*scale) == (fp8 && count > 0), "adamw: moments in E4M3 have scales, and no others do");
    require(!*scale || (scale->dtype == DType::f32 && scale->shape == Shape{moment_scales(count)}), "adamw: scales must be F32 [",
            moment_scales(count), "], got ", name_of(scale->dtype), " ", scale->shape);
  }
  require(!fp8 || op.elements.in_groups_of(kMomentGroup),
          "adamw: moments in E4M3 of elements that do not begin and end at multiples of ", kMomentGroup);
}

Work work_of(const AdamW& op) {
  return {.flops = 16.0 * static_cast<double>(op.weight.elements()),
          .bytes = static_cast<double>(op.grad.bytes() + 2 * (op.weight.bytes() + op.moment1.bytes() + op.moment2.bytes()) +
                                       2 * (op.moment1_scale ? op.moment1_scale.bytes() + op.moment2_scale.bytes() : 0) +
                                       (op.value ? op.value.bytes() : 0))};
}

bool is_on_multiple(const void* address, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; }

}  // namespace

AdamWItem::AdamWItem(const AdamW& op)
    : grad(op.grad.data),
      weight(op.weight.data),
      moment1(op.moment1.data),
      moment2(op.moment2.data),
      value(op.value.data),
      moment1_scale(static_cast<float*>(op.moment1_scale.data)),
      moment2_scale(static_cast<float*>(op.moment2_scale.data)),
      count(op.weight.elements()),
      skip(op.elements.first % kGroup),
      groups(ceil_div(count + skip, kGroup)),
      elements(op.elements),
      weight_decay(op.weight_decay),
      subject(op.subject),
      aligned(skip == 0) {
  for (const void* operand : {grad, static_cast<const void*>(weight), static_cast<const void*>(moment1),
                              static_cast<const void*>(moment2), static_cast<const void*>(value)}) {
    aligned = aligned && is_on_multiple(operand, 16);
  }
  if (count == 0) groups = 0;
}

AdamWList::AdamWList(Device& device, std::vector<AdamW> ops) : ops_(std::move(ops)) {
  std::vector<AdamWItem> items;
  std::vector<std::int64_t> chunks;
  for (const AdamW& op : ops_) {
    check(op);
    const AdamW& first = ops_.front();
    require(op.grad.dtype == first.grad.dtype && op.weight.dtype == first.weight.dtype && op.moment1.dtype == first.moment1.dtype,
            "adamw: a list with several dtypes");
    require(op.beta1 == first.beta1 && op.beta2 == first.beta2 && op.epsilon == first.epsilon && op.seed == first.seed &&
                op.scalars == first.scalars,
            "adamw: a list with several rules");
    items.emplace_back(op);
    chunks.push_back(items.back().chunks());
    work_ += work_of(op);
  }
  table_ = OpTable<AdamWItem>(device, items, chunks);
}

void adamw(Stream& stream, const AdamW& op) {
  check(op);
  stream.count("adamw", work_of(op));
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::adamw({&op, 1}); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::adamw(stream, op);
  }
}

void adamw(Stream& stream, const AdamWList& list) {
  if (list.ops().empty()) return;
  stream.count("adamw", list.work());
  if (stream.kind() == DeviceKind::cpu) stream.call([&list] { cpu::adamw(list.ops()); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::adamw(stream, list);
  }
}

void prepare_step(Stream& stream, const PrepareStep& op) {
  require(op.loss_total && op.sum_squares && op.updates && op.scalars, "prepare_step: a device pointer is missing");
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::prepare_step(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::prepare_step(stream, op);
  }
}

}  // namespace octet::kernels
