#include "octet/parallel/tensor_cut.h"

#include <algorithm>

#include "octet/base/math.h"
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

TensorCut::TensorCut(const Shape& global, const CutRule& rule, TensorPlace place) : global_(global), local_(global) {
  require(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "tensor: rank ", place.rank, " of ", place.size);
  require(global.rank() == 2 || (global.rank() == 1 && rule.along != Cut::columns), "tensor: a cut of ", global);
  TensorPiece all{.start = global, .stop = global};
  for (int d = 0; d < global.rank(); ++d) all.start[d] = 0;
  if (rule.along == Cut::none) {
    all.holder = place.rank;
    all.holders = place.size;
    pieces_ = {all};
  } else if (rule.along == Cut::columns) {
    local_[1] = share_of(global[1], place.size);
    all.start[1] = place.rank * local_[1];
    all.stop[1] = all.start[1] + local_[1];
    pieces_ = {all};
  } else {
    local_[0] = 0;
    std::int64_t row = 0;
    for (const std::int64_t rows : rule.part_rows.empty() ? std::vector<std::int64_t>{global[0]} : rule.part_rows) {
      const int shares = static_cast<int>(std::min<std::int64_t>(place.size, rows / rule.least_rows));
      require(shares > 0 && place.size % shares == 0, "tensor: ", rows, " rows, at least ", rule.least_rows, " to a share, for ",
              place.size, " ranks");
      const int holders = place.size / shares;
      const std::int64_t share = share_of(rows, shares), begin = row + place.rank / holders * share;
      const bool continues = !pieces_.empty() && pieces_.back().stop[0] == begin && pieces_.back().holders == holders;
      if (!continues) {  // otherwise one rank's parts are the whole
        pieces_.push_back(all);
        pieces_.back().start[0] = begin;
        pieces_.back().holder = place.rank % holders;
        pieces_.back().holders = holders;
      }
      pieces_.back().stop[0] = begin + share;
      local_[0] += share;
      row += rows;
    }
    require(row == global[0], "tensor: parts of ", row, " rows in all are not ", global);
  }
  std::int64_t at = 0;
  for (TensorPiece& piece : pieces_) {
    piece.local = at;
    piece.end = 1;
    for (int d = 0; d < global.rank(); ++d) piece.end *= piece.stop[d] - piece.start[d];
    at += piece.end;
  }
}

std::vector<TensorPiece> TensorCut::pieces(std::int64_t first, std::int64_t count) const {
  require(0 <= first && 0 <= count && first + count <= local_.elements(), "tensor: elements [", first, ", ", first + count,
          ") of ", local_);
  std::vector<TensorPiece> result;
  for (TensorPiece piece : pieces_) {
    const bool last = piece.local == pieces_.back().local;
    piece.begin = std::clamp<std::int64_t>(first - piece.local, 0, piece.end);
    piece.end = std::clamp<std::int64_t>(first + count - piece.local, piece.begin, piece.end);
    piece.local += piece.begin;
    if (piece.end > piece.begin || (last && result.empty())) result.push_back(piece);
  }
  return result;
}

std::optional<TensorCut> cut_in_runs(const Shape& global, const CutRule& rule, TensorPlace place, std::int64_t run) {
  const bool is_cut = place.size > 1 && rule.along != Cut::none;
  if (global.rank() == 2 && global[1] % run == 0) {
    if (is_cut && rule.along == Cut::columns && global[1] / run % place.size != 0) return {};
    return TensorCut({global[0], global[1] / run}, rule, place);
  }
  if (!is_cut) return TensorCut({ceil_div(global.elements(), run)}, {}, place);
  if (global.rank() == 2) return {};
  // The shares of a vector, of which each must be a number of runs.
  CutRule of_runs{.along = rule.along};
  if (rule.least_rows % run == 0) of_runs.least_rows = rule.least_rows / run;
  for (const std::int64_t rows : rule.part_rows.empty() ? std::vector<std::int64_t>{global[0]} : rule.part_rows) {
    const std::int64_t shares = std::min<std::int64_t>(place.size, rows / rule.least_rows);
    const bool every_rank_has_one = shares == place.size;
    if (shares == 0 || rows % (shares * run) != 0 || (rule.least_rows % run != 0 && !every_rank_has_one)) return {};
    of_runs.part_rows.push_back(rows / run);
  }
  return TensorCut({global[0] / run}, of_runs, place);
}

}  // namespace octet::parallel
