#include "octet/plan/linear_kinds.h"

#include <algorithm>
#include <set>

#include "octet/base/names.h"
#include "octet/models/decoder/names.h"
#include "octet/recipes/registry.h"

namespace octet::plan {

std::vector<LinearKind> linear_kinds(models::Decoder& model) {
  std::vector<LinearKind> kinds;
  for (const models::LinearUse& use : model.uses()) {
    const nn::LinearWeight* const linear = use.linear;
    const std::string pattern = recipes::skip_pattern(models::kind_pattern(model, linear->name()));
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
                     .experts = linear->weight().spec.expert.count,
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
  std::set<std::string> excepted;
  for (const std::string& name : except) excepted.insert(recipes::skip_pattern(name));
  std::vector<std::int64_t> result(kinds.size());
  for (const models::LinearUse& use : model.uses()) {
    const std::string& name = use.linear->name();
    if (!use.linear->is_fp8() || excepted.contains(recipes::skip_pattern(name))) continue;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (glob_match(kinds[i].pattern, name)) ++result[i];
    }
  }
  return result;
}

}  // namespace octet::plan
