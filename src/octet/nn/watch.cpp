#include "octet/nn/watch.h"

#include "octet/nn/scope.h"

namespace octet::nn {

Tensor run_alone(const Scope& scope, const kernels::Gemm& gemm) {
  kernels::Gemm alone = gemm;
  alone.d = allocate(scope.scratch, gemm.d.dtype, gemm.d.shape);
  kernels::gemm(scope.stream, scope.scratch, alone);
  return alone.d;
}

std::vector<GroupExtent> watched_groups(const Scope& scope) {
  if (!scope.groups) return {GroupExtent{}};
  const RowGroups& groups = *scope.groups;
  const std::int64_t each = groups.planned / groups.size() / kGroupRows * kGroupRows;
  std::vector<std::int32_t> counts(static_cast<std::size_t>(groups.size()), static_cast<std::int32_t>(each));
  if (scope.stream.kind() != DeviceKind::meta) {
    scope.stream.copy_to_host(counts.data(), groups.counts.data, groups.counts.bytes());
    scope.stream.synchronize();
  }
  std::vector<GroupExtent> parts = extents_of(counts);
  std::erase_if(parts, [](const GroupExtent& part) { return part.count == 0; });
  return parts;
}

Quantized watched_codes(const Scope& scope, const Quantized& q, const GroupExtent& part) {
  if (!scope.groups) return q;
  Quantized result = group_of(q, part, part.padded());
  for (Tensor* scales : {&result.rowwise_scale_inv, &result.columnwise_scale_inv}) {
    if (!*scales || scales->contiguous()) continue;
    const Tensor packed = allocate(scope.scratch, scales->dtype, scales->shape);
    for (std::int64_t row = 0; row < packed.rows(); ++row) {
      const Tensor from = scales->slice_rows(row, row + 1), to = packed.slice_rows(row, row + 1);
      scope.stream.copy(to.data, from.data, to.bytes());
    }
    *scales = packed;
  }
  return result;
}

}  // namespace octet::nn
