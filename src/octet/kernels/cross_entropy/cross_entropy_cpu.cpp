#include "octet/kernels/cross_entropy/cross_entropy_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kCrossEntropyRowsPerTask = 8;
constexpr std::int64_t kLogitsPiece = 512;

// Calls visit(first, values, count) for pieces of at most kLogitsPiece elements of the row, converted to R.
template <class T, class Visit>
void for_pieces(const T* row, std::int64_t count, const Visit& visit) {
  Real<T> buffer[kLogitsPiece];
  for (std::int64_t first = 0; first < count; first += kLogitsPiece) {
    const std::int64_t n = std::min(kLogitsPiece, count - first);
    load_row(buffer, row + first, n);
    visit(first, buffer, n);
  }
}

// The statistics of some logits: `top`, the largest, ignores NaN; the sum of e^(x - top) is NaN if a logit is.
template <class R>
struct RowSoftmax {
  R top = -std::numeric_limits<R>::infinity(), sum = 0;
};

// The value that is subtracted before exp. If all logits are -inf it is 0, so that they contribute 0 instead of NaN.
template <class R>
R shift_of(R top) {
  return top == -std::numeric_limits<R>::infinity() ? R{0} : top;
}

template <class T>
RowSoftmax<Real<T>> softmax_of(const T* logits, std::int64_t count) {
  using R = Real<T>;
  RowSoftmax<R> s;
  for_pieces(logits, count, [&s](std::int64_t, const R* x, std::int64_t n) { s.top = max_row(x, n, s.top); });
  for_pieces(logits, count,
             [&s, shift = shift_of(s.top)](std::int64_t, const R* x, std::int64_t n) { s.sum += sum_exp_row(x, n, shift); });
  return s;
}

// x = e^(x - top) / sum.
template <class T>
void to_probabilities(T* logits, std::int64_t count, const RowSoftmax<Real<T>>& s) {
  using R = Real<T>;
  const R scale = R{1} / s.sum;
  for_pieces(logits, count, [=](std::int64_t first, R* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = exp_of(x[i] - s.top) * scale;
    store_row(logits + first, x, n);
  });
}

template <class T>
void to_zeros(T* logits, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) logits[i] = static_cast<T>(Real<T>{0});
}

// Returns the loss of one token. If `writes` is true, replaces its logits by the gradient.
template <class T>
Real<T> one_token(T* logits, std::int64_t count, std::int32_t target, bool writes) {
  using R = Real<T>;
  if (target == kIgnoredTarget) {
    if (writes) to_zeros(logits, count);
    return 0;
  }
  const RowSoftmax<R> s = softmax_of(logits, count);
  const R chosen = static_cast<R>(logits[target]) - s.top;
  if (writes) {
    to_probabilities(logits, count, s);
    logits[target] = static_cast<T>(exp_of(chosen) * (R{1} / s.sum) - R{1});
  }
  return std::log(s.sum) - chosen;
}

void check_targets(const Tensor& targets, std::int64_t vocabulary) {
  const std::int32_t* target = targets.as<std::int32_t>();
  for (std::int64_t t = 0; t < targets.rows(); ++t) {
    require(target[t] == kIgnoredTarget || (0 <= target[t] && target[t] < vocabulary), "cross_entropy: target ", target[t],
            " of token ", t, " is outside the vocabulary of ", vocabulary);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& op) {
  const std::int64_t vocabulary = op.logits.cols();
  const std::int32_t* targets = op.targets.as<std::int32_t>();
  check_targets(op.targets, vocabulary);
  const bool writes = op.gradient == CrossEntropy::Gradient::in_place;
  visit_float(op.logits.dtype, [&]<class T>() {
    parallel_ranges(op.logits.rows(), kCrossEntropyRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        T* logits = op.logits.as<T>() + t * op.logits.row_stride;
        op.loss.as<Real<T>>()[t] = one_token<T>(logits, vocabulary, targets[t], writes);
      }
    });
  });
}

void softmax_statistics(const SoftmaxStatistics& op) {
  const std::int64_t tokens = op.logits.rows(), columns = op.logits.cols();
  const std::int32_t* targets = op.targets.as<std::int32_t>();
  visit_float(op.logits.dtype, [&]<class T>() {
    using R = Real<T>;
    R* const top = op.statistics.as<R>();
    R *const sum = top + tokens, *const chosen = sum + tokens;
    parallel_ranges(tokens, kCrossEntropyRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* logits = op.logits.as<T>() + t * op.logits.row_stride;
        const std::int64_t target = targets[t] - op.first;
        const bool counts = targets[t] != kIgnoredTarget, here = counts && 0 <= target && target < columns;
        const RowSoftmax<R> s = counts ? softmax_of(logits, columns) : RowSoftmax<R>{0, 0};
        top[t] = s.top;
        sum[t] = s.sum;
        chosen[t] = here ? static_cast<R>(logits[target]) : R{0};
      }
    });
  });
}

void cross_entropy_of_part(const CrossEntropyOfPart& op) {
  check_targets(op.targets, op.vocabulary);
  const std::int64_t tokens = op.logits.rows(), columns = op.logits.cols(), parts = op.statistics.rows() / 3;
  const std::int32_t* targets = op.targets.as<std::int32_t>();
  const bool writes = op.gradient == CrossEntropy::Gradient::in_place;
  visit_float(op.logits.dtype, [&]<class T>() {
    using R = Real<T>;
    const auto statistic = [&](std::int64_t part, std::int64_t which, std::int64_t t) {
      return op.statistics.as<R>()[(3 * part + which) * tokens + t];
    };
    const auto one = [&](std::int64_t t) {
      T* logits = op.logits.as<T>() + t * op.logits.row_stride;
      if (targets[t] == kIgnoredTarget) {
        if (writes) to_zeros(logits, columns);
        return R{0};
      }
      RowSoftmax<R> s;
      for (std::int64_t part = 0; part < parts; ++part) s.top = std::max(s.top, statistic(part, 0, t));
      R chosen = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        s.sum += statistic(part, 1, t) * exp_of(statistic(part, 0, t) - shift_of(s.top));
        chosen += statistic(part, 2, t);
      }
      chosen -= s.top;
      if (writes) {
        to_probabilities(logits, columns, s);
        const std::int64_t target = targets[t] - op.first;
        if (0 <= target && target < columns) logits[target] = static_cast<T>(exp_of(chosen) * (R{1} / s.sum) - R{1});
      }
      return std::log(s.sum) - chosen;
    };
    parallel_ranges(tokens, kCrossEntropyRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) op.loss.as<R>()[t] = one(t);
    });
  });
}

void loss_sum(const LossSum& op) {
  const std::int32_t* targets = op.targets.as<std::int32_t>();
  visit_float(op.loss.dtype, [&]<class T>() {
    double sum = 0;
    std::int64_t tokens = 0;
    for (std::int64_t t = 0; t < op.loss.rows(); ++t) {
      sum += static_cast<double>(static_cast<Real<T>>(op.loss.as<T>()[t]));
      tokens += targets[t] != kIgnoredTarget;
    }
    op.total[0] += sum;
    op.total[1] += static_cast<double>(tokens);
  });
}

}  // namespace octet::kernels::cpu
