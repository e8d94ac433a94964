#include "octet/nn/norm.h"

#include "octet/nn/layernorm.h"
#include "octet/nn/rmsnorm.h"

namespace octet::nn {

std::unique_ptr<Norm> make_norm(NormKind kind, const std::string& name, std::int64_t dim, double epsilon,
                                parallel::ParameterStore& store) {
  if (kind == NormKind::rms) return std::make_unique<RmsNorm>(name, dim, epsilon, store);
  return std::make_unique<LayerNorm>(name, dim, epsilon, store);
}

}  // namespace octet::nn
