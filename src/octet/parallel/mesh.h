// The mesh: every rank has a coordinate on each of the named axes. Axis lists them from the slowest to the fastest: ranks that
// differ only on the tensor axis are neighbours, those of different pipeline stages are farthest apart.
//
// Expert parallelism reuses the ranks of the shard axis, as in Megatron. So `expert` is not an axis but divides shard. Each run
// of `expert` consecutive shard coordinates holds all experts once. Its ranks process different data and exchange tokens. A
// rank's expert coordinate is its shard coordinate modulo expert. The ranks of shard x context with the same expert coordinate
// hold the shards of the same experts.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace octet::parallel {

enum class Axis : std::uint8_t {
  pipeline,   // stages: runs of consecutive blocks (parallel/pipeline.h)
  replicate,  // copies of everything; they process different data
  shard,      // shards of parameters, gradients and states; the ranks process different data
  context,    // parts of each sequence; parameters are sharded over shard x context
  tensor,     // parts of each layer
};
inline constexpr std::size_t kAxes = 5;
const char* name_of(Axis axis);

// The size of the pipeline axis, the number of model chunks (virtual stages) that each stage holds, and the number of blocks that
// take about as long as the head, which the last stage computes in addition to its blocks.
struct Stages {
  int count = 1, chunks = 1, head_blocks = 0;
};

class Mesh {
 public:
  Mesh() : Mesh({1, 1, 1, 1}) {}
  // The sizes of replicate, shard, context and tensor; each at least 1.
  explicit Mesh(const std::array<int, kAxes - 1>& sizes, int expert = 1, Stages stages = {});

  int ranks() const;
  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int size(std::initializer_list<Axis> axes) const;
  int coordinate(Axis axis, int rank) const;
  // Returns the group of `rank` on these axes: the ranks that differ from it on no other axis, in the order of their numbers.
  std::vector<int> group(std::initializer_list<Axis> axes, int rank) const;

  // Returns the mesh with other stages and the same sizes of all other axes.
  Mesh with(Stages stages) const {
    return Mesh({size(Axis::replicate), size(Axis::shard), size(Axis::context), size(Axis::tensor)}, expert_, stages);
  }

  Stages stages() const { return stages_; }
  int expert() const { return expert_; }
  int expert_coordinate(int rank) const { return coordinate(Axis::shard, rank) % expert_; }
  // Returns the ranks that exchange tokens with `rank`, in the order of their coordinates.
  std::vector<int> expert_group(int rank) const;
  // Returns the ranks of shard x context that hold shards of the same experts, in the order of their numbers.
  std::vector<int> expert_shards(int rank) const;

  // A data coordinate is a number in replicate x shard. Each data coordinate has its own data; all ranks with the same
  // coordinate train on the same sequences, stage by stage.
  int data_coordinates() const { return size({Axis::replicate, Axis::shard}); }
  int data_coordinate(int rank) const {
    return coordinate(Axis::replicate, rank) * size(Axis::shard) + coordinate(Axis::shard, rank);
  }

 private:
  std::array<int, kAxes> sizes_;
  Stages stages_;
  int expert_;
};

}  // namespace octet::parallel
