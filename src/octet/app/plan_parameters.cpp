// `octet plan --parameters`, for people and for programs.
#include <fmt/format.h>

#include "octet/app/plan.h"
#include "octet/base/json.h"

namespace octet::app {

std::string parameters_text(const PlannedRun& run, const plan::ParameterTable& table) {
  std::string text = fmt::format("{}: {}, on {}\n{}; {}\n", run.run, run.recipe, cluster_text(run.cluster),
                                 plan::mesh_text(run.layout.mesh), plan::keeps_text(run.layout));
  if (run.layout.mesh.ranks() > 1) text += fmt::format("held by rank {}", run.memory_rank);
  const parallel::Stages stages = run.layout.mesh.stages();
  if (stages.count > 1)
    text += fmt::format(", pipeline stage {}", run.layout.mesh.coordinate(parallel::Axis::pipeline, run.memory_rank));
  return text + (run.layout.mesh.ranks() > 1 ? "\n\n" : "\n") + plan::text_of(table);
}

std::string parameters_json(const PlannedRun& run, const plan::ParameterTable& table) {
  Json kinds = Json::array();
  for (const plan::ParameterKind& kind : table.kinds) {
    Json copies = Json::object();
    for (std::size_t i = 0; i < parallel::kCopies; ++i) {
      const parallel::Held& held = kind.copies[i];
      if (held.place == parallel::Place::absent) continue;
      copies[std::string(name_of(static_cast<parallel::Copy>(i)))] = {
          {"place", name_of(held.place)}, {"dtype", name_of(held.dtype)}, {"bytes", kind.bytes[i]}};
    }
    Json shape = Json::array();
    for (int i = 0; i < kind.shape.rank(); ++i) shape.push_back(kind.shape[i]);
    kinds.push_back({{"name", kind.name},
                     {"parameters", kind.count},
                     {"shape", shape},
                     {"shards", kind.shards},
                     {"copies", copies},
                     {"scale_bytes", kind.scale_bytes},
                     {"bytes", kind.total()}});
  }
  Json categories = Json::object();
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    const plan::ParameterBytes& bytes = table.bytes[i];
    if (bytes.total() == 0) continue;
    categories[std::string(name_of(static_cast<MemoryCategory>(i)))] = {
        {"copies", bytes.copies}, {"scales", bytes.scales}, {"shared", bytes.shared}, {"total", bytes.total()}};
  }
  return Json{{"run", run.run},          {"recipe", run.recipe},
              {"rank", run.memory_rank}, {"stage", run.layout.mesh.coordinate(parallel::Axis::pipeline, run.memory_rank)},
              {"kinds", kinds},          {"elsewhere", table.elsewhere},
              {"bytes", categories}}
             .dump(2) +
         "\n";
}

}  // namespace octet::app
