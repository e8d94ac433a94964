// The tensor axis. Its t ranks hold parts of each layer (Shoeybi et al., Megatron-LM, 2019). A rank holds some rows or some
// columns of a weight and treats them as a weight of its own, which the other axes cut further.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octet/kernels/global_elements.h"
#include "octet/tensor/shape.h"

namespace octet::parallel {

enum class Cut : std::uint8_t {
  none,     // every rank holds the same: norms
  rows,     // linears whose outputs are cut, and their biases; the vocabulary of embedding and head
  columns,  // linears whose inputs are cut
};

// How a tensor is cut into t parts. t must divide the cut dimension.
struct CutRule {
  Cut along = Cut::none;
  std::vector<std::int64_t> part_rows = {};  // of a fused linear, whose parts are shared out one by one; empty: one part
  // The smallest number of rows that a rank holds: head_dim for Q, K and V. With fewer KV heads than ranks, neighbouring ranks
  // hold the same head.
  std::int64_t least_rows = 1;
};

// A rank's place on the tensor axis.
struct TensorPlace {
  int rank = 0, size = 1;
};

// Elements [begin, end) of the row-major order of the box [start, stop) of a global tensor. In the rank's own part of the
// tensor they begin at element `local`.
struct TensorPiece {
  Shape start, stop;
  std::int64_t begin = 0, end = 0;
  std::int64_t local = 0;
  // `holders` neighbouring ranks of the axis have copies of this piece; this rank is number `holder` of them. Number 0 owns the
  // piece.
  int holder = 0, holders = 1;

  std::int64_t elements() const { return end - begin; }
  kernels::GlobalElements global_elements(const Shape& global) const;
};

class TensorCut {
 public:
  TensorCut() = default;
  // The part of a tensor that the rank at `place` holds. For a fused tensor this is its share of the first part, below it its
  // share of the second, and so on.
  TensorCut(const Shape& global, const CutRule& rule, TensorPlace place);

  const Shape& global() const { return global_; }
  const Shape& local() const { return local_; }
  // Returns the pieces of elements [first, first + count) of the rank's part, in row-major order; at least one.
  std::vector<TensorPiece> pieces(std::int64_t first, std::int64_t count) const;

 private:
  Shape global_, local_;
  std::vector<TensorPiece> pieces_;  // of all that the rank holds: whole boxes
};

// Returns the cut of a tensor that has one number for every `run` consecutive elements of a tensor of shape `global`: [R, C /
// run] for [R, C] if run divides C, otherwise [ceil(elements / run)]. Element i of a rank's part belongs to its number i / run.
// Returns nothing unless every rank that shares the tensor holds whole runs of each row, or of the vector, because no cut
// describes a run of several rows.
std::optional<TensorCut> cut_in_runs(const Shape& global, const CutRule& rule, TensorPlace place, std::int64_t run);

// Calls visit(index in the global tensor, index in the local one, count) for each run of consecutive elements of a piece.
template <class Visit>
void for_runs(const TensorPiece& piece, const Shape& global, const Visit& visit) {
  const kernels::GlobalElements elements = piece.global_elements(global);
  for (std::int64_t i = 0; i < piece.elements();) {
    const std::int64_t left = piece.elements() - i, run = elements.consecutive_from(i), count = run < left ? run : left;
    visit(elements.at(i), piece.local + i, count);
    i += count;
  }
}

}  // namespace octet::parallel
