#include "octet/parallel/mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "octet/base/require.h"

namespace octet::parallel {

const char* name_of(Axis axis) {
  constexpr const char* kNames[] = {"pipeline", "replicate", "shard", "context", "tensor"};
  return kNames[static_cast<std::size_t>(axis)];
}

Mesh::Mesh(const std::array<int, kAxes - 1>& sizes, int expert, Stages stages)
    : sizes_{stages.count, sizes[0], sizes[1], sizes[2], sizes[3]}, stages_(stages), expert_(expert) {
  for (std::size_t i = 0; i < kAxes; ++i) require(sizes_[i] >= 1, "a mesh of ", sizes_[i], " on axis ", name_of(Axis(i)));
  require(stages.chunks >= 1, "a mesh of ", stages.chunks, " chunks on each stage");
  require(expert >= 1 && size(Axis::shard) % expert == 0, "a mesh of ", size(Axis::shard), " on axis shard, expert ", expert);
}

int Mesh::ranks() const { return std::accumulate(sizes_.begin(), sizes_.end(), 1, std::multiplies<>()); }

int Mesh::size(std::initializer_list<Axis> axes) const {
  int product = 1;
  for (const Axis axis : axes) product *= size(axis);
  return product;
}

int Mesh::coordinate(Axis axis, int rank) const {
  require(rank >= 0 && rank < ranks(), "rank ", rank, " of ", ranks());
  int faster = 1;
  for (std::size_t i = static_cast<std::size_t>(axis) + 1; i < kAxes; ++i) faster *= sizes_[i];
  return rank / faster % size(axis);
}

std::vector<int> Mesh::group(std::initializer_list<Axis> axes, int rank) const {
  std::vector<int> result;
  for (int other = 0; other < ranks(); ++other) {
    bool together = true;
    for (std::size_t i = 0; i < kAxes; ++i) {
      const auto axis = static_cast<Axis>(i);
      const bool free = std::find(axes.begin(), axes.end(), axis) != axes.end();
      together = together && (free || coordinate(axis, other) == coordinate(axis, rank));
    }
    if (together) result.push_back(other);
  }
  return result;
}

std::vector<int> Mesh::expert_group(int rank) const {
  std::vector<int> result = group({Axis::shard}, rank);
  std::erase_if(result,
                [&](int other) { return coordinate(Axis::shard, other) / expert_ != coordinate(Axis::shard, rank) / expert_; });
  return result;
}

std::vector<int> Mesh::expert_shards(int rank) const {
  std::vector<int> result = group({Axis::shard, Axis::context}, rank);
  std::erase_if(result, [&](int other) { return expert_coordinate(other) != expert_coordinate(rank); });
  return result;
}

}  // namespace octet::parallel
