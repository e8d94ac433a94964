#include "octet/kernels/cross_entropy/cross_entropy_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kRowsPerTask = 8;
constexpr std::int64_t kPiece = 512;

// Calls visit(first, values, count) for the row in pieces of at most kPiece elements, as R.
template <class T, class Visit>
void for_pieces(const T* row, std::int64_t count, const Visit& visit) {
  Real<T> buffer[kPiece];
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t n = std::min(kPiece, count - first);
    load_row(buffer, row + first, n);
    visit(first, buffer, n);
  }
}

// The loss of one token; its logits become the gradient when `writes`.
template <class T>
Real<T> one_token(T* logits, std::int64_t count, std::int32_t target, bool writes) {
  using R = Real<T>;
  if (target == kIgnoredTarget) {
    if (writes) {
      for (std::int64_t i = 0; i < count; ++i) logits[i] = static_cast<T>(R{0});
    }
    return 0;
  }
  // NaN is passed over in the maximum and comes back through the sum.
  R shift = -std::numeric_limits<R>::infinity();
  for_pieces(logits, count, [&shift](std::int64_t, const R* x, std::int64_t n) { shift = max_row(x, n, shift); });
  R sum = 0;
  for_pieces(logits, count, [&sum, shift](std::int64_t, const R* x, std::int64_t n) { sum += sum_exp_row(x, n, shift); });
  const R chosen = static_cast<R>(logits[target]) - shift;
  if (writes) {
    const R scale = R{1} / sum;
    for_pieces(logits, count, [=](std::int64_t first, R* x, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) x[i] = exp_of(x[i] - shift) * scale;
      store_row(logits + first, x, n);
    });
    logits[target] = static_cast<T>(exp_of(chosen) * scale - R{1});
  }
  return std::log(sum) - chosen;
}

}  // namespace

void cross_entropy(const CrossEntropy& op) {
  const std::int64_t vocabulary = op.logits.cols();
  const std::int32_t* targets = op.targets.as<std::int32_t>();
  for (std::int64_t t = 0; t < op.logits.rows(); ++t) {
    require(targets[t] == kIgnoredTarget || (0 <= targets[t] && targets[t] < vocabulary), "cross_entropy: target ", targets[t],
            " of token ", t, " is outside the vocabulary of ", vocabulary);
  }
  const bool writes = op.gradient == CrossEntropy::Gradient::in_place;
  visit_float(op.logits.dtype, [&]<class T>() {
    parallel_ranges(op.logits.rows(), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        T* logits = op.logits.as<T>() + t * op.logits.row_stride;
        op.loss.as<Real<T>>()[t] = one_token<T>(logits, vocabulary, targets[t], writes);
      }
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
