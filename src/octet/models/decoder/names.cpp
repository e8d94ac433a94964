#include "octet/models/decoder/names.h"

#include <algorithm>
#include <map>

namespace octet::models {

parallel::NameTable parameter_names(Decoder& model) {
  struct Fused {
    const nn::Linear* linear;
    const char* what;
  };
  std::map<const parallel::Parameter*, Fused> fused;
  for (const nn::Linear* linear : model.linears()) {
    if (linear->parts().size() == 1) continue;
    fused[&linear->weight()] = {linear, ".weight"};
    if (linear->bias()) fused[linear->bias()] = {linear, ".bias"};
  }
  parallel::NameTable table;
  for (parallel::Parameter& p : model.parameters().parameters()) {
    const Shape& shape = p.cut.global();
    const auto found = fused.find(&p);
    if (found == fused.end()) {
      table.push_back({.external = p.spec.name, .parameter = &p, .rows = {{0, shape[0]}}, .shape = shape});
      continue;
    }
    const auto& [linear, what] = found->second;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < linear->parts().size(); ++i) {
      Shape part = shape;
      part[0] = p.spec.cut.part_rows[i];
      table.push_back(
          {.external = linear->parts()[i] + what, .parameter = &p, .rows = {{begin, begin + part[0]}}, .shape = part});
      begin += part[0];
    }
  }
  return table;
}

std::string kind_pattern(const std::string& module) {
  const std::size_t dot = std::min(module.find(".layers."), module.find(".h."));
  if (dot == std::string::npos) return module;
  const std::size_t number = module.find('.', dot + 1) + 1;
  return module.substr(0, number) + "*" + module.substr(module.find('.', number));
}

}  // namespace octet::models
