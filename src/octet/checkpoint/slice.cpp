#include "octet/checkpoint/slice.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "octet/base/require.h"

namespace octet::checkpoint {
namespace {

// Views a slice as runs of consecutive global indices. Positions in a box and their global indices increase together, so a global index
// can be searched for in the box.
class Runs {
 public:
  Runs(const Shape& global, const Slice& slice) : slice_(slice), box_(slice.box_shape()), rank_(global.rank()) {
    std::int64_t stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      stride_[d] = stride;
      stride *= global[d];
    }
    // If the box has the full extent of the tensor in all dims after `outer`, one run spans these dims.
    int outer = rank_ - 1;
    run_length_ = rank_ > 0 ? box_[rank_ - 1] : 1;
    while (outer > 0 && box_[outer] == global[outer]) run_length_ *= box_[--outer];
  }

  // Global index of position `local` of the box.
  std::int64_t global_index(std::int64_t local) const {
    std::int64_t index = 0;
    for (int d = rank_ - 1; d >= 0; --d) {
      index += (slice_.start[d] + local % box_[d]) * stride_[d];
      local /= box_[d];
    }
    return index;
  }
  // The end of the run that contains position `local`.
  std::int64_t run_end(std::int64_t local) const { return std::min((local / run_length_ + 1) * run_length_, slice_.end); }
  // The first position of the slice whose global index is at least `index`, or slice.end if there is none.
  std::int64_t lower_bound(std::int64_t index) const {
    std::int64_t local = 0, rest = index;
    for (int d = 0; d < rank_; ++d) {
      const std::int64_t coordinate = rest / stride_[d];
      rest %= stride_[d];
      local *= box_[d];
      if (coordinate < slice_.start[d]) {
        local = skip(local, d);
        return clamp(local);
      }
      if (coordinate >= slice_.stop[d]) return clamp(skip(local + box_[d], d));
      local += coordinate - slice_.start[d];
    }
    return clamp(local);
  }

 private:
  // Converts `count` steps in dim d to a number of positions.
  std::int64_t skip(std::int64_t count, int d) const {
    for (int inner = d + 1; inner < rank_; ++inner) count *= box_[inner];
    return count;
  }
  std::int64_t clamp(std::int64_t local) const { return std::clamp(local, slice_.begin, slice_.end); }

  Slice slice_;
  Shape box_;
  int rank_;
  std::int64_t stride_[4] = {};
  std::int64_t run_length_ = 1;
};

// A slice with at least one element, and the global indices of its first and last elements.
struct Extent {
  const Slice* slice;
  std::int64_t first, last;
};

Extent extent_of(const Shape& global, const Slice& slice) {
  const Runs runs(global, slice);
  return {&slice, runs.global_index(slice.begin), runs.global_index(slice.end - 1)};
}

Slice common_box(const Slice& a, const Slice& b) {
  Slice common;
  for (int d = 0; d < a.start.rank(); ++d) {
    common.start.push_back(std::max(a.start[d], b.start[d]));
    common.stop.push_back(std::max(common.start[d], std::min(a.stop[d], b.stop[d])));
  }
  common.end = common.box_shape().elements();
  return common;
}

// Iterates over the elements that two slices share: the elements of the common box whose global index is within both extents. A run of
// the common box is consecutive in both slices.
class Overlap {
 public:
  Overlap(const Shape& global, const Extent& a, const Extent& b)
      : common_(common_box(*a.slice, *b.slice)), runs_(global, common_), last_(std::min(a.last, b.last)) {
    position_ = common_.end > 0 ? runs_.lower_bound(std::max(a.first, b.first)) : common_.end;
  }
  // Advances to the next run and returns its length, or 0 if there is none.
  std::int64_t next() {
    if (position_ >= common_.end) return 0;
    index_ = runs_.global_index(position_);
    const std::int64_t count = std::max<std::int64_t>(0, std::min(runs_.run_end(position_) - position_, last_ - index_ + 1));
    position_ = count > 0 ? position_ + count : common_.end;
    return count;
  }
  // Global index of the run's first element.
  std::int64_t index() const { return index_; }

 private:
  Slice common_;
  Runs runs_;
  std::int64_t last_, position_ = 0, index_ = 0;
};

}  // namespace

Slice Slice::whole(const Shape& global) { return flat(global, 0, global.elements()); }

Slice Slice::flat(const Shape& global, std::int64_t begin, std::int64_t end) {
  Slice slice;
  for (int d = 0; d < global.rank(); ++d) slice.start.push_back(0);
  slice.stop = global;
  slice.begin = begin;
  slice.end = end;
  return slice;
}

Slice Slice::box(const Shape& start, const Shape& stop) {
  Slice slice;
  slice.start = start;
  slice.stop = stop;
  slice.end = slice.box_shape().elements();
  return slice;
}

Shape Slice::box_shape() const {
  Shape shape;
  for (int d = 0; d < stop.rank(); ++d) shape.push_back(stop[d] - start[d]);
  return shape;
}

std::string Slice::text() const {
  std::string result;
  for (int d = 0; d < stop.rank(); ++d) result += concat(d ? " x " : "", "[", start[d], ", ", stop[d], ")");
  return concat(result, result.empty() ? "" : ", ", "elements [", begin, ", ", end, ")");
}

bool is_within(const Slice& slice, const Shape& global) {
  if (slice.start.rank() != global.rank() || slice.stop.rank() != global.rank()) return false;
  std::int64_t elements = 1, box_elements = 1;
  for (int d = 0; d < global.rank(); ++d) {
    if (slice.start[d] < 0 || slice.start[d] > slice.stop[d] || slice.stop[d] > global[d]) return false;
    if (__builtin_mul_overflow(elements, global[d], &elements)) return false;
    if (__builtin_mul_overflow(box_elements, slice.stop[d] - slice.start[d], &box_elements)) return false;
  }
  return 0 <= slice.begin && slice.begin <= slice.end && slice.end <= box_elements;
}

bool tile_exactly(const Shape& global, std::span<const Slice> slices) {
  std::int64_t missing = global.elements();
  std::vector<Extent> extents;
  for (const Slice& slice : slices) {
    if (!is_within(slice, global) || slice.elements() > missing) return false;
    missing -= slice.elements();
    if (slice.elements() > 0) extents.push_back(extent_of(global, slice));
  }
  if (missing > 0) return false;
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < extents.size(); ++i) {
    for (std::size_t j = i + 1; j < extents.size() && extents[j].first <= extents[i].last; ++j) {
      if (Overlap(global, extents[i], extents[j]).next() > 0) return false;
    }
  }
  return true;
}

bool overlap(const Shape& global, const Slice& a, const Slice& b) {
  return a.elements() > 0 && b.elements() > 0 && Overlap(global, extent_of(global, a), extent_of(global, b)).next() > 0;
}

std::int64_t copy_overlap(const Shape& global, const Slice& from, const void* from_data, const Slice& to, void* to_data,
                          std::size_t element_bytes) {
  require(is_within(from, global) && is_within(to, global), "slices ", from.text(), " and ", to.text(), " of ", global);
  if (from.elements() == 0 || to.elements() == 0) return 0;
  const Runs source(global, from), target(global, to);
  Overlap overlap(global, extent_of(global, from), extent_of(global, to));
  std::int64_t copied = 0;
  while (const std::int64_t count = overlap.next()) {
    const std::int64_t s = source.lower_bound(overlap.index()) - from.begin, t = target.lower_bound(overlap.index()) - to.begin;
    std::memcpy(static_cast<std::byte*>(to_data) + static_cast<std::size_t>(t) * element_bytes,
                static_cast<const std::byte*>(from_data) + static_cast<std::size_t>(s) * element_bytes,
                static_cast<std::size_t>(count) * element_bytes);
    copied += count;
  }
  return copied;
}

}  // namespace octet::checkpoint
