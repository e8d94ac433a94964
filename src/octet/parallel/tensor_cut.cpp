#include "octet/parallel/tensor_cut.h"

#include <algorithm>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

std::int64_t share_of(std::int64_t size, int parts) {
  require(size % parts == 0, "tensor: ", size, " rows or columns cannot be cut into ", parts, " equal parts");
  return size / parts;
}

}  // namespace

kernels::GlobalElements TensorPiece::global_elements(const Shape& global) const {
  const std::int64_t width = stop.rank() > 1 ? stop[1] - start[1] : 1, stride = global.rank() > 1 ? global[1] : 1;
  const std::int64_t corner = start[0] * stride + (start.rank() > 1 ? start[1] : 0);
  if (width == stride) return {.first = corner + begin};
  const std::int64_t skip = begin % width;
  return {.first = corner + begin / width * stride + skip, .run = width, .stride = stride, .skip = skip};
}

std::int64_t TensorCut::Box::elements() const {
  std::int64_t product = 1;
  for (int d = 0; d < stop.rank(); ++d) product *= stop[d] - start[d];
  return product;
}

TensorCut::TensorCut(const Shape& global, const CutRule& rule, TensorPlace place) : global_(global), local_(global) {
  require(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "tensor: rank ", place.rank, " of ", place.size);
  require(global.rank() == 2 || (global.rank() == 1 && rule.along != Cut::columns), "tensor: a cut of ", global);
  Box all{.start = global, .stop = global};
  for (int d = 0; d < global.rank(); ++d) all.start[d] = 0;
  if (rule.along == Cut::none) {
    all.holder = place.rank;
    all.holders = place.size;
    boxes_ = {all};
  } else if (rule.along == Cut::columns) {
    local_[1] = share_of(global[1], place.size);
    all.start[1] = place.rank * local_[1];
    all.stop[1] = all.start[1] + local_[1];
    boxes_ = {all};
  } else {
    local_[0] = 0;
    std::int64_t row = 0;
    for (const std::int64_t rows : rule.part_rows.empty() ? std::vector<std::int64_t>{global[0]} : rule.part_rows) {
      const int shares = static_cast<int>(std::min<std::int64_t>(place.size, rows / rule.least_rows));
      require(shares > 0 && place.size % shares == 0, "tensor: ", rows, " rows, at least ", rule.least_rows, " to a share, for ",
              place.size, " ranks");
      const int holders = place.size / shares;
      const std::int64_t share = share_of(rows, shares), begin = row + place.rank / holders * share;
      if (!boxes_.empty() && boxes_.back().stop[0] == begin &&
          boxes_.back().holders == holders) {  // one rank's parts are the whole
        boxes_.back().stop[0] += share;
      } else {
        Box box{.start = all.start, .stop = all.stop, .holder = place.rank % holders, .holders = holders};
        box.start[0] = begin;
        box.stop[0] = begin + share;
        boxes_.push_back(box);
      }
      local_[0] += share;
      row += rows;
    }
    require(row == global[0], "tensor: parts of ", row, " rows in all are not ", global);
  }
}

std::vector<TensorPiece> TensorCut::pieces(std::int64_t first, std::int64_t count) const {
  require(0 <= first && 0 <= count && first + count <= local_.elements(), "tensor: elements [", first, ", ", first + count,
          ") of ", local_);
  std::vector<TensorPiece> result;
  std::int64_t at = 0;
  for (const Box& box : boxes_) {
    const std::int64_t begin = std::clamp<std::int64_t>(first - at, 0, box.elements());
    const std::int64_t end = std::clamp<std::int64_t>(first + count - at, begin, box.elements());
    if (end > begin || (&box == &boxes_.back() && result.empty())) {
      result.push_back({.start = box.start,
                        .stop = box.stop,
                        .begin = begin,
                        .end = end,
                        .local = at + begin,
                        .holder = box.holder,
                        .holders = box.holders});
    }
    at += box.elements();
  }
  return result;
}

}  // namespace octet::parallel
