// The groups of one rank on the mesh.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/comm/group.h"
#include "octet/parallel/mesh.h"

namespace octet::parallel {

struct Groups {
  std::unique_ptr<comm::Group> replicas;  // replicate: ranks that hold the same
  std::unique_ptr<comm::Group> shards;    // shard x context: ranks that hold the parts of a parameter
  std::unique_ptr<comm::Group> context;   // ranks that hold the parts of a sequence
  std::unique_ptr<comm::Group> tensor;    // ranks that hold the parts of a layer

  // From the fastest axis to the slowest, so that what is reduced over all of them is reduced over all ranks.
  std::vector<comm::Group*> all() const { return {tensor.get(), shards.get(), replicas.get()}; }

  // Throws Error{peer} if one of them has failed: see comm::Group::check().
  void check() const {
    for (comm::Group* group : {replicas.get(), shards.get(), context.get(), tensor.get()}) group->check();
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
