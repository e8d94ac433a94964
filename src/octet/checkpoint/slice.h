// Pieces of global tensors, and what any two of them have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "octet/tensor/shape.h"

namespace octet::checkpoint {

// Elements [begin, end) of the row-major order of the box [start, stop) of a global tensor. A tensor split over one axis is a
// box, a flat shard of it a range of the box.
struct Slice {
  Shape start, stop;                // one per dim of the global shape
  std::int64_t begin = 0, end = 0;  // 0 <= begin <= end <= box elements

  static Slice whole(const Shape& global);
  // Elements [begin, end) of the tensor itself.
  static Slice flat(const Shape& global, std::int64_t begin, std::int64_t end);
  static Slice box(const Shape& start, const Shape& stop);

  std::int64_t elements() const { return end - begin; }
  Shape box_shape() const;
  bool operator==(const Slice&) const = default;
  // "[0, 4) x [2, 6), elements [3, 9)"
  std::string text() const;
};

// Whether the slice lies within a tensor of shape `global`, no number of elements overflowing.
bool is_within(const Slice& slice, const Shape& global);

// Whether the slices cover a tensor of shape `global`, each element once.
bool tile_exactly(const Shape& global, std::span<const Slice> slices);

// Whether two slices of a tensor of shape `global` have an element in common.
bool overlap(const Shape& global, const Slice& a, const Slice& b);

// Copies the elements that both slices of a tensor of shape `global` hold, of `element_bytes` each, and returns how many those
// are. `from_data` and `to_data` hold the slices' elements in order.
std::int64_t copy_overlap(const Shape& global, const Slice& from, const void* from_data, const Slice& to, void* to_data,
                          std::size_t element_bytes);

}  // namespace octet::checkpoint
