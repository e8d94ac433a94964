// Rows of a matrix that belong to several tensors, one after another: the rows of the tokens that chose each expert.
#pragma once

#include <span>
#include <vector>

#include "octet/base/math.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet {

// A group begins at a multiple of this: the tile of products, and of scales along tokens.
inline constexpr std::int64_t kGroupRows = 128;

// The groups of a matrix [R, C]. Group g has rows [first[g], first[g] + counts[g]). Producers write zeros after them, up to the
// next multiple of kGroupRows. Rows from first[G] on belong to no group; nobody reads or writes them. All numbers lie on the
// device, so that no host needs to know how many rows there are.
struct RowGroups {
  Tensor counts;              // [G] I32
  Tensor first;               // [G + 1] I32, multiples of kGroupRows
  Tensor tiles;               // [R / kGroupRows] I32: the group of each kGroupRows rows; -1 from first[G] on
  std::int64_t planned = 0;   // the number of rows that a plan assumes, because it does not know the counts

  explicit operator bool() const { return static_cast<bool>(counts); }
  std::int64_t size() const { return counts ? counts.rows() : 0; }
  std::int64_t rows() const { return tiles.rows() * kGroupRows; }
  // The share of all rows that a plan assumes to be used; 1 without groups.
  double planned_share() const { return *this && rows() > 0 ? static_cast<double>(planned) / static_cast<double>(rows()) : 1.0; }
};

// The number of rows that a matrix must have to hold `rows` rows, however they are distributed over the groups.
constexpr std::int64_t grouped_rows(std::int64_t rows, std::int64_t groups) {
  return (rows + groups * (kGroupRows - 1)) / kGroupRows * kGroupRows;
}

// Allocates the numbers of `count` groups in a matrix of `rows` rows. A plan assumes that `used` rows are spread evenly over the
// groups, and that they fill whole tiles.
RowGroups allocate_groups(Arena& arena, std::int64_t count, std::int64_t rows, std::int64_t used);

// A group whose number of rows is known on the host.
struct GroupExtent {
  std::size_t group = 0;
  std::int64_t first = 0, count = 0;
  std::int64_t padded() const { return round_up(count, kGroupRows); }
};
// Returns the groups with these counts, including those without rows.
std::vector<GroupExtent> extents_of(std::span<const std::int32_t> counts);
inline std::vector<GroupExtent> extents_of(const RowGroups& groups) {  // whose counts the host can read
  return extents_of({groups.counts.as<std::int32_t>(), static_cast<std::size_t>(groups.size())});
}

// The shapes of the scales of codes [rows, cols] in groups. They are those of codes without groups (tensor/quantized.h), but
// each group has its own scale of the tensor tile, [G], and its own columnwise scales of the row tile, [G, cols]. With `groups`
// 0 they are exactly those of codes without groups.
Shape rowwise_scale_shape(ScaleTile tile, std::int64_t rows, std::int64_t cols, std::int64_t groups);
Shape columnwise_scale_shape(ScaleTile tile, std::int64_t padded_rows, std::int64_t cols, std::int64_t groups);

// Returns the codes of a group's first `rows` rows. Scales of 1x128 and MX tiles may then be strided.
Quantized group_of(const Quantized& q, const GroupExtent& part, std::int64_t rows);

}  // namespace octet
