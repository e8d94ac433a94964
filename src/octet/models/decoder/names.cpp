#include "octet/models/decoder/names.h"

#include <map>

namespace octet::models {

parallel::NameTable parameter_names(Decoder& model) {
  std::map<const parallel::Parameter*, const nn::Linear*> fused;
  for (const nn::Linear* linear : model.linears()) {
    if (linear->parts().size() > 1) fused[&linear->weight()] = linear;
  }
  parallel::NameTable table;
  for (parallel::Parameter& p : model.parameters().parameters()) {
    const Shape& shape = p.cut.global();
    const auto found = fused.find(&p);
    if (found == fused.end()) {
      table.push_back({.external = p.spec.name, .parameter = &p, .rows = {{0, shape[0]}}, .shape = shape});
      continue;
    }
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < found->second->parts().size(); ++i) {
      const std::int64_t rows = p.spec.cut.part_rows[i];
      table.push_back({.external = found->second->parts()[i] + ".weight",
                       .parameter = &p,
                       .rows = {{begin, begin + rows}},
                       .shape = {rows, shape[1]}});
      begin += rows;
    }
  }
  return table;
}

}  // namespace octet::models
