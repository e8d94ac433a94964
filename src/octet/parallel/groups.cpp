#include "octet/parallel/groups.h"

#include <algorithm>

namespace octet::parallel {
namespace {

// "shard x context of ranks 0, 1, 4, 5"
std::string group_name(const char* axes, const std::vector<int>& ranks) {
  std::string name = concat(axes, " of ranks ");
  for (const int& rank : ranks) name += concat(&rank == ranks.data() ? "" : ", ", rank);
  return name;
}

}  // namespace

Groups make_groups(const Mesh& mesh, int rank,
                   const std::function<std::unique_ptr<comm::Group>(const std::string&, const std::vector<int>&)>& make) {
  const auto group = [&](const char* axes, std::initializer_list<Axis> free) {
    const std::vector<int> ranks = mesh.group(free, rank);
    if (ranks.size() == 1) return comm::make_silent_group(axes);
    return make(group_name(axes, ranks), ranks);
  };
  return {.replicas = group("replicate", {Axis::replicate}),
          .shards = group("shard x context", {Axis::shard, Axis::context}),
          .context = group("context", {Axis::context}),
          .tensor = group("tensor", {Axis::tensor})};
}

Groups silent_groups(const Mesh& mesh, int rank) {
  return make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) {
    const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    return comm::make_silent_group(name, static_cast<int>(place), static_cast<int>(ranks.size()));
  });
}

}  // namespace octet::parallel
