#include "octet/train/dump.h"

#include "octet/base/names.h"

namespace octet::train {

void DumpObserver::operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) {
  if (!glob_match(pattern_, linear) || scope.queue.kind() == DeviceKind::meta) return;
  HostQuantized host = to_host(scope.queue, q, source.rows(), source.cols());
  const std::string name = concat(prefix_, linear, ".", role_letter(role));
  add(name + ".values", to_host(scope.queue, source));
  add(name + ".codes", std::move(host.codes));
  add(name + ".scale_inv", std::move(host.scale_inv));
  add(name + ".codes_t", std::move(host.codes_t));
  add(name + ".scale_inv_t", std::move(host.scale_inv_t));
}

bool DumpObserver::wants_products(std::string_view linear) const { return glob_match(pattern_, linear); }

void DumpObserver::product(const nn::Scope& scope, std::string_view linear, std::string_view which, const Tensor& value) {
  if (scope.queue.kind() == DeviceKind::meta) return;
  add(concat(prefix_, linear, ".", which), to_host(scope.queue, value));
}

void DumpObserver::add(const std::string& name, HostTensor tensor) {
  if (tensor.bytes() > 0) tensors_[name] = std::move(tensor);
}

}  // namespace octet::train
