// The groups of one rank on the mesh.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/group.h"
#include "octet/parallel/experts.h"
#include "octet/parallel/mesh.h"

namespace octet::parallel {

// The messages between neighbouring stages of a pipeline.
enum class Message : std::uint8_t { activations, gradients };
inline constexpr std::size_t kMessages = 2;

struct Groups {
  Groups() = default;
  Groups(Groups&&) = default;
  Groups& operator=(Groups&&) = default;
  // Closes the links to other stages in the order of their stages. NCCL closes a group only when the group's other ranks close
  // it too, so no two ranks may wait for each other.
  ~Groups();

  std::unique_ptr<comm::Group> replicas;  // replicate: the ranks that hold the same shards
  std::unique_ptr<comm::Group> shards;    // shard x context: the ranks that hold the shards of a parameter
  std::unique_ptr<comm::Group> context;   // the ranks that hold the parts of a sequence
  std::unique_ptr<comm::Group> tensor;    // the ranks that hold the parts of a layer
  std::unique_ptr<comm::Group> expert;    // the ranks that exchange tokens; each holds different experts
  // The ranks of shard x context that hold the shards of the same experts (Megatron's expert-data-parallel group). Null without
  // expert parallelism, because a group of GPUs takes memory. expert_shards() then returns `shards`.
  std::unique_ptr<comm::Group> expert_data;

  std::unique_ptr<comm::Group> stages;  // pipeline: the ranks that hold the same part of each stage
  // Groups of two ranks: this rank and its counterpart on the previous or on the next stage. The stages form a ring. Each kind
  // of message has its own groups, so that no kind waits for another. Null if there is one stage.
  std::array<std::unique_ptr<comm::Group>, kMessages> before, behind;

  comm::Group& expert_shards() const { return expert_data ? *expert_data : *shards; }
  // Returns the ranks that hold the shards of a parameter.
  comm::Group& shards_of(Expert expert) const { return expert ? expert_shards() : *shards; }
  // Returns the one or two groups that hold shards of some parameter.
  std::vector<comm::Group*> all_shards() const {
    return expert_data ? std::vector<comm::Group*>{shards.get(), expert_data.get()} : std::vector<comm::Group*>{shards.get()};
  }

  // Returns the groups from the fastest axis to the slowest. A reduction over each of them in turn is a reduction over all
  // ranks.
  std::vector<comm::Group*> all() const { return {tensor.get(), shards.get(), replicas.get(), stages.get()}; }
  // Returns the same groups, each paired with the group that replaces it in a reduction over the ranks of this stage that hold
  // the same experts.
  std::vector<std::pair<comm::Group*, comm::Group*>> all_and_of_experts() const {
    return {{tensor.get(), tensor.get()},
            {shards.get(), &expert_shards()},
            {replicas.get(), replicas.get()},
            {stages.get(), nullptr}};
  }
  // Returns these groups without the tensor axis, whose ranks all process the same tokens.
  std::vector<comm::Group*> all_of_tokens() const { return {shards.get(), replicas.get(), stages.get()}; }

  // Throws Error{peer} if one of the groups has failed: see comm::Group::check().
  void check() const {
    for (comm::Group* group : {replicas.get(), shards.get(), context.get(), tensor.get(), expert.get(), &expert_shards(),
                               stages.get(), before[0].get(), before[1].get(), behind[0].get(), behind[1].get()}) {
      if (group) group->check();
    }
  }
};

// `make` connects the given ranks, in the order of their numbers, to a group with the given name. It is called only for groups
// of several ranks, in the same order on all ranks.
Groups make_groups(
    const Mesh& mesh, int rank,
    const std::function<std::unique_ptr<comm::Group>(const std::string& name, const std::vector<int>& ranks)>& make);
// Makes groups that send nothing, for one rank or for the meta device. `tensor_reaches` says whether the ranks of the tensor
// axis can read each other's memory.
Groups silent_groups(const Mesh& mesh, int rank, bool tensor_reaches = false);

}  // namespace octet::parallel
