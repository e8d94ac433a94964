#include "octet/plan/linear_kinds.h"

#include <algorithm>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/models/decoder/names.h"

namespace octet::plan {

std::vector<LinearKind> linear_kinds(models::Decoder& model) {
  demand(model.config().experts == 0, ExitCode::config, "octet advise does not support mixtures of experts, and the model has ",
         model.config().experts, " experts. Use `octet compare` to measure recipes for this model");
  std::vector<LinearKind> kinds;
  for (const models::LinearUse& use : model.uses()) {
    const nn::LinearWeight* const linear = use.linear;
    const std::string pattern = models::kind_pattern(model, linear->name());
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const LinearKind& kind) { return kind.pattern == pattern; });
    if (known != kinds.end()) {
      ++known->layers;
      continue;
    }
    const Shape shape = linear->weight().cut.global();
    const nn::Adapter* const adapter = linear->adapter();
    kinds.push_back({.name = use.kind,
                     .pattern = pattern,
                     .out = shape[0],
                     .in = shape[1],
                     .layers = 1,
                     .x = use.x,
                     .g = use.g,
                     .cut = linear->weight().spec.cut.along,
                     .residual = use.residual,
                     .bias = linear->bias() != nullptr,
                     .frozen = linear->weight().spec.frozen,
                     .adapter_rank = adapter ? adapter->a().cut.global()[0] : 0,
                     .quantisable = shape[0] % 16 == 0 && shape[1] % 16 == 0});
  }
  return kinds;
}

std::vector<std::int64_t> fp8_layers(models::Decoder& model, const std::vector<LinearKind>& kinds,
                                     const std::vector<std::string>& except) {
  std::vector<std::int64_t> result(kinds.size());
  for (const auto* linear : model.linears()) {
    if (!linear->is_fp8() || std::find(except.begin(), except.end(), linear->name()) != except.end()) continue;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (glob_match(kinds[i].pattern, linear->name())) ++result[i];
    }
  }
  return result;
}

}  // namespace octet::plan
