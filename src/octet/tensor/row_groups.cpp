#include "octet/tensor/row_groups.h"

namespace octet {

RowGroups allocate_groups(Arena& arena, std::int64_t count, std::int64_t rows, std::int64_t used) {
  const auto numbers = [&](std::int64_t n) { return allocate(arena, DType::i32, {n}); };
  return {.counts = numbers(count),
          .first = numbers(count + 1),
          .tiles = numbers(rows / kGroupRows),
          .planned = count * round_up(ceil_div(used, count), kGroupRows)};
}

std::vector<GroupExtent> extents_of(std::span<const std::int32_t> counts) {
  std::vector<GroupExtent> parts(counts.size());
  std::int64_t first = 0;
  for (std::size_t g = 0; g < counts.size(); ++g) {
    parts[g] = {.group = g, .first = first, .count = counts[g]};
    first += parts[g].padded();
  }
  return parts;
}

Shape rowwise_scale_shape(ScaleTile tile, std::int64_t rows, std::int64_t cols, std::int64_t groups) {
  return groups > 0 && tile == ScaleTile::tensor ? Shape{groups} : scale_shape(tile, rows, cols);
}

Shape columnwise_scale_shape(ScaleTile tile, std::int64_t padded_rows, std::int64_t cols, std::int64_t groups) {
  if (groups > 0 && tile == ScaleTile::tensor) return {groups};
  if (groups > 0 && tile == ScaleTile::row) return {groups, cols};
  return scale_shape(tile, cols, padded_rows);
}

Quantized group_of(const Quantized& q, const GroupExtent& part, std::int64_t rows) {
  const std::int64_t first = part.first, end = first + rows;
  const auto group = static_cast<std::int64_t>(part.group);
  Quantized result = q;
  if (q.rowwise) result.rowwise = q.rowwise.slice_rows(first, end);
  if (q.columnwise) result.columnwise = q.columnwise.slice_cols(first, end);
  Tensor& along_rows = result.rowwise_scale_inv;
  Tensor& along_columns = result.columnwise_scale_inv;
  if (q.tile == ScaleTile::tensor) {
    if (along_rows) along_rows = along_rows.slice_rows(group, group + 1);
    if (along_columns) along_columns = along_columns.slice_rows(group, group + 1);
    return result;
  }
  const bool blocks = q.tile == ScaleTile::block_1x128;
  if (along_rows) along_rows = blocks ? along_rows.slice_cols(first, end) : along_rows.slice_rows(first, end);
  if (!along_columns) return result;
  if (q.tile == ScaleTile::row) {
    along_columns = along_columns.slice_rows(group, group + 1).reshape({along_columns.cols()});
  } else if (blocks) {
    along_columns = along_columns.slice_rows(first / 128, first / 128 + ceil_div(rows, 128));
  } else {
    along_columns = along_columns.slice_cols(first / 32, first / 32 + ceil_div(rows, 32));
  }
  return result;
}

}  // namespace octet
