// Compares state that several ranks hold in common. Broken hardware can change bits without an error; these ranks then differ.
//
// Along `replicate` all state that outlives a step must be equal to the bit, on every device and in every mode: weights,
// moments, their scales, the state of delayed scaling, the number of updates, and the values and codes of frozen weights. These
// ranks start from the same bits. If the order of a sum changes its bits, `replicate` is the last axis over which it is
// exchanged; all ranks of an all-reduce get the same bits. Random numbers are keyed by the element of the whole model. So every
// replica computes the same update.
//
// Along `tensor` the state of parameters that this axis does not cut (norms, for example) must be equal, for the same reasons.
//
// Not compared: codes and values that every step makes anew from the state; heads of keys and values that some ranks of the
// tensor axis share; biases of routers among the ranks of shard and context. Ranks of shard, context and pipeline hold
// different pieces of all other state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/kernels/tensor_list.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/units.h"
#include "octet/recipes/scaler.h"

namespace octet::train {

// State that differs between ranks.
struct Disagreement {
  parallel::Axis axis = parallel::Axis::replicate;
  std::vector<int> ranks;  // numbers of the ranks on this axis whose state must be equal
  std::vector<int> wrong;  // those of them that differ from the majority; empty: there is no majority
  std::string tensor;      // the first that differs, by its name in checkpoints
};

// Returns the ranks whose value differs from the value of the majority (more than half); none if there is no majority.
std::vector<int> minority(const std::vector<std::uint64_t>& values, const std::vector<int>& ranks);

class ReplicaCheck {
 public:
  // `updates` is the optimizer's count. All arguments must outlive this object. On a GPU, takes memory of MemoryCategory::state
  // for a table of all tensors; takes nothing if no other rank holds the same state.
  ReplicaCheck(Device& device, const parallel::Mesh& mesh, int rank, const parallel::Groups& groups,
               const parallel::ParameterStore& store, const recipes::ScaleState& scales, const Tensor& updates);

  // All ranks call it together, between steps, when `stream` may read the state. Reads each byte of the state once, exchanges 8
  // bytes with the ranks of each of the two axes, and waits. Returns a disagreement in which this rank takes part, if there is
  // any, and prefers one with a majority. Ranks that disagree find the tensor by exchanging 8 bytes about ten times.
  std::optional<Disagreement> compare(Stream& stream, Arena& scratch, parallel::Units& units);

 private:
  struct Axis {
    parallel::Axis axis;
    comm::Group* group;
    std::vector<int> ranks;
    std::vector<std::size_t> tensors;  // numbers of the tensors that its ranks hold in common
  };
  using Sums = std::vector<std::uint64_t>;
  Sums gather(Stream& stream, Arena& scratch, parallel::Units& units, const Axis& axis, std::size_t count) const;

  std::vector<std::string> names_;
  kernels::TensorList tensors_;
  std::vector<Axis> axes_;
  Sums sums_;  // of each tensor
};

}  // namespace octet::train
