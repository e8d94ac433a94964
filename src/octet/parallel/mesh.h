// The mesh: every rank has a coordinate on each of the named axes, from the slowest to the fastest as they stand in Axis. Ranks
// that differ on the tensor axis alone are neighbours, those of different replicas farthest apart.
//
// `expert` is no axis, and no factor of the number of ranks: it divides shard. A rank's expert coordinate is its shard coordinate
// modulo expert. Ranks whose shard coordinates are a multiple of expert and those after it, all else equal, exchange tokens: they
// hold different experts and see different data. The ranks of shard x context with one expert coordinate hold the parts of the
// same experts.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace octet::parallel {

enum class Axis : std::uint8_t {
  replicate,  // copies of everything, that see other data
  shard,      // parts of parameters, gradients and states, that see other data
  context,    // parts of each sequence; parameters are cut over shard x context
  tensor,     // parts of each layer
};
inline constexpr std::size_t kAxes = 4;
const char* name_of(Axis axis);

class Mesh {
 public:
  Mesh() : Mesh({1, 1, 1, 1}) {}
  // Sizes in the order of Axis; each at least 1.
  explicit Mesh(const std::array<int, kAxes>& sizes, int expert = 1);

  int ranks() const;
  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int size(std::initializer_list<Axis> axes) const;
  int coordinate(Axis axis, int rank) const;
  // The ranks that differ from `rank` on these axes at most, in the order of their numbers: its group there.
  std::vector<int> group(std::initializer_list<Axis> axes, int rank) const;

  int expert() const { return expert_; }
  int expert_coordinate(int rank) const { return coordinate(Axis::shard, rank) % expert_; }
  // The ranks that exchange tokens with `rank`, in the order of their coordinates.
  std::vector<int> expert_group(int rank) const;
  // Those of shard x context that hold parts of the same experts, in the order of their numbers.
  std::vector<int> expert_shards(int rank) const;

  // Who draws data of its own: replicate x shard. All ranks of a coordinate train on the same sequences.
  int data_coordinates() const { return size({Axis::replicate, Axis::shard}); }
  int data_coordinate(int rank) const {
    return coordinate(Axis::replicate, rank) * size(Axis::shard) + coordinate(Axis::shard, rank);
  }

 private:
  std::array<int, kAxes> sizes_;
  int expert_;
};

}  // namespace octet::parallel
