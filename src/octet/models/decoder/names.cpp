#include "octet/models/decoder/names.h"

#include <map>
#include <set>

#include "octet/models/registry.h"

namespace octet::models {

parallel::NameTable parameter_names(Decoder& model) {
  std::map<const parallel::Parameter*, std::pair<const nn::LinearWeight*, const char*>> fused;  // and the ends of their names
  std::set<const parallel::Parameter*> of_adapters;
  for (const nn::LinearWeight* linear : model.linears()) {
    if (linear->adapter()) of_adapters.insert({&linear->adapter()->a(), &linear->adapter()->b()});
    if (linear->parts().size() == 1) continue;
    fused[&linear->weight()] = {linear, ".weight"};
    if (linear->bias()) fused[linear->bias()] = {linear, ".bias"};
  }
  parallel::NameTable table;
  for (parallel::Parameter& p : model.parameters().parameters()) {
    if (of_adapters.contains(&p)) continue;
    const Shape& shape = p.cut.global();
    const auto found = fused.find(&p);
    if (found == fused.end()) {
      table.push_back({.external = p.spec.name, .parameter = &p, .rows = {{0, shape[0]}}, .shape = shape});
      continue;
    }
    const auto& [linear, end] = found->second;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < linear->parts().size(); ++i) {
      Shape part = shape;
      part[0] = p.spec.cut.part_rows[i];
      table.push_back({.external = linear->parts()[i] + end, .parameter = &p, .rows = {{begin, begin + part[0]}}, .shape = part});
      begin += part[0];
    }
  }
  return table;
}

parallel::NameTable adapter_names(Decoder& model) {
  const parallel::NameTable names = names_of(model);
  std::map<std::string, const parallel::NameEntry*> weights;
  for (const parallel::NameEntry& entry : names) weights[entry.external] = &entry;
  parallel::NameTable table;
  for (const nn::LinearWeight* linear : model.linears()) {
    const nn::Adapter* const adapter = linear->adapter();
    if (!adapter) continue;
    const std::int64_t rank = adapter->options().rank, in = linear->weight().cut.global()[1];
    const std::vector<std::size_t>& parts = adapter->options().parts;
    const auto name = [&](std::size_t i, const char* matrix) {
      return concat("base_model.model.", linear->parts()[parts[i]], ".", matrix, ".weight");
    };
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto begin = static_cast<std::int64_t>(i) * rank;
      table.push_back(
          {.external = name(i, "lora_A"), .parameter = &adapter->a(), .rows = {{begin, begin + rank}}, .shape = {rank, in}});
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const nn::Adapter::Part& part = adapter->parts()[i];
      parallel::NameEntry entry{
          .external = name(i, "lora_B"), .parameter = &adapter->b(), .shape = {part.end - part.begin, rank}};
      for (const parallel::RowRun& run : weights.at(linear->parts()[parts[i]] + ".weight")->rows)
        entry.rows.push_back({run.begin - part.begin + part.begin_of_b, run.end - part.begin + part.begin_of_b});
      table.push_back(std::move(entry));
    }
  }
  return table;
}

std::string kind_pattern(const Decoder& model, const std::string& module) {
  const std::string blocks = family_of(model.config().family, "model").modules.blocks + ".";
  if (!module.starts_with(blocks)) return module;
  return blocks + "*" + module.substr(module.find('.', blocks.size()));
}

}  // namespace octet::models
