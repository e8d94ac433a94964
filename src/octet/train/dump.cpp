#include "octet/train/dump.h"

#include "octet/base/names.h"

namespace octet::train {

void DumpWatch::operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) {
  if (!glob_match(pattern_, linear) || scope.stream.kind() == DeviceKind::meta) return;
  HostQuantized host = to_host(scope.stream, q, source.rows(), source.cols());
  const std::string name = concat(prefix_, linear, ".", role_letter(role));
  add(name + ".values", to_host(scope.stream, source));
  add(name + ".codes", std::move(host.codes));
  add(name + ".scale_inv", std::move(host.scale_inv));
  add(name + ".codes_t", std::move(host.columnwise));
  add(name + ".scale_inv_t", std::move(host.columnwise_scale_inv));
}

void DumpWatch::product(const nn::Scope& scope, std::string_view linear, std::string_view which, const kernels::Gemm& gemm) {
  if (!glob_match(pattern_, linear)) return;
  const ArenaScope temporaries(scope.scratch);
  const Tensor value = nn::run_alone(scope, gemm);
  if (scope.stream.kind() != DeviceKind::meta) add(concat(prefix_, linear, ".", which), to_host(scope.stream, value));
}

void DumpWatch::add(const std::string& name, HostTensor tensor) {
  if (tensor.bytes() > 0) tensors_[name] = std::move(tensor);
}

}  // namespace octet::train
