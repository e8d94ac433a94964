// Slices of global tensors, and the elements that two slices share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "octet/tensor/shape.h"

namespace octet::checkpoint {

// Elements [begin, end), in row-major order, of the box [start, stop) of a global tensor. A tensor that is split along a dim is a box;
// a flat shard of it is a range of the box.
struct Slice {
  Shape start, stop;                // one number for each dim of the global shape
  std::int64_t begin = 0, end = 0;  // 0 <= begin <= end <= number of elements of the box

  static Slice whole(const Shape& global);
  // Elements [begin, end) of the whole tensor in row-major order.
  static Slice flat(const Shape& global, std::int64_t begin, std::int64_t end);
  static Slice box(const Shape& start, const Shape& stop);

  std::int64_t elements() const { return end - begin; }
  Shape box_shape() const;
  bool operator==(const Slice&) const = default;
  // "[0, 4) x [2, 6), elements [3, 9)"
  std::string text() const;
};

// Whether the slice is inside a tensor of shape `global` and the numbers of elements fit in 64 bits.
bool is_within(const Slice& slice, const Shape& global);

// Whether the slices cover each element of a tensor of shape `global` exactly once.
bool tile_exactly(const Shape& global, std::span<const Slice> slices);

// Whether two slices of a tensor of shape `global` have an element in common.
bool overlap(const Shape& global, const Slice& a, const Slice& b);

// Copies the elements that two slices of a tensor of shape `global` share from `from_data` to `to_data`, and returns their number. Each
// buffer holds the elements of its slice in order, with `element_bytes` bytes for each.
std::int64_t copy_overlap(const Shape& global, const Slice& from, const void* from_data, const Slice& to, void* to_data,
                          std::size_t element_bytes);

}  // namespace octet::checkpoint
