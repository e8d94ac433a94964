// The groups of one rank on the mesh.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/comm/group.h"
#include "octet/parallel/experts.h"
#include "octet/parallel/mesh.h"

namespace octet::parallel {

struct Groups {
  std::unique_ptr<comm::Group> replicas;  // replicate: ranks that hold the same
  std::unique_ptr<comm::Group> shards;    // shard x context: ranks that hold the parts of a parameter
  std::unique_ptr<comm::Group> context;   // ranks that hold the parts of a sequence
  std::unique_ptr<comm::Group> tensor;    // ranks that hold the parts of a layer
  std::unique_ptr<comm::Group> expert;    // ranks that exchange tokens: each holds experts of its own
  // Ranks of shard x context that hold the parts of the same experts; absent where those are `shards` themselves, as a group of
  // GPUs takes memory: expert_shards() gives the one or the other.
  std::unique_ptr<comm::Group> apart;

  comm::Group& expert_shards() const { return apart ? *apart : *shards; }
  // Ranks that hold the parts of a parameter.
  comm::Group& shards_of(Expert expert) const { return expert ? expert_shards() : *shards; }
  // One or two: those that hold parts of some parameter.
  std::vector<comm::Group*> all_shards() const {
    return apart ? std::vector<comm::Group*>{shards.get(), apart.get()} : std::vector<comm::Group*>{shards.get()};
  }

  // From the fastest axis to the slowest, so that what is reduced over all of them is reduced over all ranks.
  std::vector<comm::Group*> all() const { return {tensor.get(), shards.get(), replicas.get()}; }
  // The same over all ranks that hold the same experts.
  std::vector<comm::Group*> all_of_experts() const { return {tensor.get(), &expert_shards(), replicas.get()}; }

  // Throws Error{peer} if one of them has failed: see comm::Group::check().
  void check() const {
    for (comm::Group* group : {replicas.get(), shards.get(), context.get(), tensor.get(), expert.get(), &expert_shards()}) {
      group->check();
    }
  }
};

// `make` connects ranks (in the order of their numbers) under a name of their own; it is asked for groups of several ranks alone,
// on all ranks in the same order.
Groups make_groups(
    const Mesh& mesh, int rank,
    const std::function<std::unique_ptr<comm::Group>(const std::string& name, const std::vector<int>& ranks)>& make);
// Groups that send nothing: of one rank, or for the meta device.
Groups silent_groups(const Mesh& mesh, int rank);

}  // namespace octet::parallel
