// What all implementations of blockwise attention on the CPU share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "octet/base/math.h"
#include "octet/kernels/attention/attention_plan.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {

// Divides a lane's memory into consecutive pieces.
template <class R>
class Pieces {
 public:
  explicit Pieces(R* memory) : next_(memory) {}
  R* take(std::int64_t elements) {
    R* result = next_;
    next_ += elements;
    return result;
  }

 private:
  R* next_;
};

// The rows of a tensor from `row` on, without the columns before `column`.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  Rows(const Tensor& x, std::int64_t row, std::int64_t column)
      : data(x.as<T>() + row * x.row_stride + column), stride(x.row_stride) {}
  T* operator[](std::int64_t i) const { return data + i * stride; }
};

// The keys of a tile that a query sees: [begin, end), or {0, 0} if it sees none.
struct SeenKeys {
  std::int64_t begin, end;
};

// Computes which keys the queries of a sequence see.
class Mask {
 public:
  template <class Op>
  Mask(const AttentionPlan& plan, const Op& op, std::int64_t b)
      : plan_(plan),
        first_keys_(op.first_keys ? op.first_keys.template as<std::int32_t>() + b * plan.sq : nullptr),
        keys_before_(op.keys_before) {}

  // Which of the keys [first, first + width) query `i` sees.
  SeenKeys operator()(std::int64_t i, std::int64_t first, std::int64_t width) const {
    const std::int64_t end = std::clamp<std::int64_t>(i + plan_.offset() + 1 - first, 0, width);
    const std::int64_t document = first_keys_ ? first_keys_[i] - keys_before_ : 0;
    const std::int64_t begin = std::max<std::int64_t>(std::max(document, first_in_window(i)) - first, 0);
    return begin < end ? SeenKeys{begin, end} : SeenKeys{0, 0};
  }
  // Returns the first key of the first tile in which any of the queries [begin, begin + rows) sees a key. A mask does not
  // change the boundaries of tiles.
  std::int64_t first_tile(std::int64_t begin, std::int64_t rows) const {
    const std::int64_t document =
        first_keys_ ? *std::min_element(first_keys_ + begin, first_keys_ + begin + rows) - keys_before_ : 0;
    return std::max<std::int64_t>({document, first_in_window(begin), 0}) / plan_.k_block * plan_.k_block;
  }

 private:
  std::int64_t first_in_window(std::int64_t i) const { return plan_.window > 0 ? i + plan_.offset() + 1 - plan_.window : 0; }

  const AttentionPlan& plan_;
  const std::int32_t* first_keys_;
  std::int64_t keys_before_;
};

// Sets the logits before the first visible key and after the last one to -inf, up to a whole number of vectors. Their exp is 0.
// Handling the remainder separately would cost as much as several vectors. Returns the padded length.
template <class R>
inline std::int64_t pad_row(R* row, SeenKeys seen) {
  const std::int64_t padded = round_up(seen.end, kSumLanes);
  std::fill(row, row + seen.begin, -std::numeric_limits<R>::infinity());
  std::fill(row + seen.end, row + padded, -std::numeric_limits<R>::infinity());
  return padded;
}

// A query's running softmax (online softmax).
template <class R>
struct Softmax {
  R largest = -std::numeric_limits<R>::infinity(), sum = 0;
};

// Adds terms with the sum `added`. If `largest`, the largest logit so far, has grown, rescales the sums o [dim] so far.
template <class R>
inline void enter_sum(Softmax<R>& softmax, R largest, R added, R* o, std::int64_t dim) {
  if (largest > softmax.largest) {
    const R correction = exp_of(softmax.largest - largest);
    softmax.sum *= correction;
    for (std::int64_t c = 0; c < dim; ++c) o[c] *= correction;
    softmax.largest = largest;
  }
  softmax.sum += added;
}

// Turns the logits [width] of a query into e^(logit - largest) and adds them to its softmax. If the largest logit has grown,
// rescales the query's sums o [dim] so far. Logits of keys that the query does not see become 0.
template <class R>
inline void enter_logits(R* row, SeenKeys seen, std::int64_t width, Softmax<R>& softmax, R* o, std::int64_t dim) {
  const std::int64_t padded = pad_row(row, seen);
  std::fill(row + padded, row + std::max(padded, width), R(0));
  if (seen.end == 0) return;
  const R shift = max_row(row, padded, softmax.largest);
  // If all logits so far are -inf, any finite shift makes each term 0.
  const R added = exp_and_sum_row(row, padded, std::isinf(shift) && shift < 0 ? R(0) : shift);
  enter_sum(softmax, shift, added, o, dim);
}

// Writes o / sum and returns log sum exp.
template <class T>
inline Real<T> finish_query(T* out, Real<T>* o, std::int64_t dim, const Softmax<Real<T>>& softmax) {
  if (softmax.sum != 0) {  // true also for NaN
    for (std::int64_t c = 0; c < dim; ++c) o[c] /= softmax.sum;
  }
  store_row(out, o, dim);
  return softmax.largest + std::log(softmax.sum);
}

// Turns the logits p and dP of a query's row into P and dS. Elements of keys that the query does not see become 0.
template <class R>
inline void enter_gradients(R* p, R* dp, SeenKeys seen, std::int64_t width, R lse, R delta) {
  // If all logits of a row are -inf, the row has no gradient, like a query that sees no key.
  if (std::isinf(lse) && lse < 0) seen = {0, 0};
  const std::int64_t padded = pad_row(p, seen);
  for (std::int64_t j = 0; j < padded; ++j) {
    p[j] = exp_of(p[j] - lse);
    dp[j] = p[j] * (dp[j] - delta);
  }
  std::fill(p + seen.end, p + width, R(0));
  std::fill(dp, dp + seen.begin, R(0));  // this memory may hold anything
  std::fill(dp + seen.end, dp + width, R(0));
}

}  // namespace octet::kernels::cpu
