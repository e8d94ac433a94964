#include "octet/parallel/groups.h"

#include <algorithm>

namespace octet::parallel {

Groups::~Groups() {
  const bool ring_begins = stages && stages->rank() == 0;  // the link behind this stage is the first, that before it the last
  auto &first = ring_begins ? behind : before, &second = ring_begins ? before : behind;
  for (auto* links : {&first, &second}) {
    for (auto& link : *links) link.reset();
  }
}

Groups make_groups(const Mesh& mesh, int rank,
                   const std::function<std::unique_ptr<comm::Group>(const std::string&, const std::vector<int>&)>& make) {
  const auto group = [&](const char* axes, const std::vector<int>& ranks) {
    if (ranks.size() == 1) return comm::make_silent_group(axes);
    return make(concat(axes, " of ranks ", joined(ranks)), ranks);  // "shard x context of ranks 0, 1, 4, 5"
  };
  const std::vector<int> stages = mesh.group({Axis::pipeline}, rank);
  Groups groups;
  groups.replicas = group("replicate", mesh.group({Axis::replicate}, rank));
  groups.shards = group("shard x context", mesh.group({Axis::shard, Axis::context}, rank));
  groups.context = group("context", mesh.group({Axis::context}, rank));
  groups.tensor = group("tensor", mesh.group({Axis::tensor}, rank));
  groups.expert = group("expert", mesh.expert_group(rank));
  if (mesh.expert() > 1) groups.expert_data = group("expert shards", mesh.expert_shards(rank));
  groups.stages = group("pipeline", stages);
  if (stages.size() == 1) return groups;
  // Makes links in the order of their stages, so that no two ranks wait for each other. With one chunk, nothing goes from the
  // last stage to the first.
  const std::size_t count = stages.size(), links = mesh.stages().chunks > 1 ? count : count - 1;
  for (std::size_t i = 0; i < links; ++i) {
    const std::vector<int> ends = {stages[i], stages[(i + 1) % count]};
    if (rank != ends[0] && rank != ends[1]) continue;
    auto& link = rank == ends[0] ? groups.behind : groups.before;
    link[0] = group(concat("outputs of stage ", i).c_str(), ends);
    link[1] = group(concat("gradients to stage ", i).c_str(), ends);
  }
  return groups;
}

Groups silent_groups(const Mesh& mesh, int rank, bool tensor_reaches) {
  Groups groups = make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) {
    const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    return comm::make_silent_group(name, static_cast<int>(place), static_cast<int>(ranks.size()));
  });
  const comm::Group& tensor = *groups.tensor;
  if (tensor_reaches) groups.tensor = comm::make_silent_group(tensor.name(), tensor.rank(), tensor.size(), true);
  return groups;
}

}  // namespace octet::parallel
