#include "octet/kernels/router/router_cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kTokensPerTask = 256;

// Chooses the k largest scores, the largest first; among equal scores, the first.
template <class R>
void choose(const R* scores, std::int64_t count, std::int32_t* experts, std::int64_t k) {
  std::int64_t chosen = 0;
  for (std::int32_t e = 0; e < count; ++e) {
    if (chosen == k && !(scores[e] > scores[experts[k - 1]])) continue;
    std::int64_t place = chosen < k ? chosen++ : k - 1;
    for (; place > 0 && scores[e] > scores[experts[place - 1]]; --place) experts[place] = experts[place - 1];
    experts[place] = e;
  }
}

// e^(logit - shift)
template <class R>
double exp_from(R logit, double shift) {
  return exp_of(static_cast<double>(logit) - shift);
}

template <class R>
double log_sum_exp(const R* logits, std::int64_t count) {
  const auto largest = static_cast<double>(max_row(logits, count));
  return largest + std::log(lane_sum<double>(count, [=](std::int64_t e) { return exp_from(logits[e], largest); }));
}

// The share of a sequence's tokens that are trained on.
template <class R>
R weight_of(const Tensor& counted, std::int64_t sequence, std::int64_t seq_len) {
  return counted ? static_cast<R>(counted.as<std::int32_t>()[sequence]) / static_cast<R>(seq_len) : R{1};
}

template <class R>
void count_sequence(const RouterForward& op, const double* lse, std::int64_t sequence) {
  const std::int64_t count = op.logits.cols(), k = op.experts.cols(), tokens = op.logits.rows() / op.statistics.rows();
  std::vector<double> sums(static_cast<std::size_t>(2 * count + 1));
  for (std::int64_t t = sequence * tokens; t < (sequence + 1) * tokens; ++t) {
    const R* const logits = op.logits.as<R>() + t * count;
    for (std::int64_t s = 0; s < k; ++s) ++sums[static_cast<std::size_t>(op.experts.as<std::int32_t>()[t * k + s])];
    for (std::int64_t e = 0; e < count; ++e)
      sums[static_cast<std::size_t>(count + e)] += exp_from(logits[e], lse[t]);
    sums.back() += lse[t] * lse[t];
  }
  std::copy(sums.begin(), sums.end(), op.statistics.as<R>() + sequence * op.statistics.cols());
}

}  // namespace

void router_forward(const RouterForward& op, double* lse) {
  const auto run = [&]<class R>(R) {
    const std::int64_t count = op.logits.cols(), k = op.experts.cols();
    parallel_ranges(op.logits.rows(), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
      std::vector<R> scores(static_cast<std::size_t>(op.bias ? count : 0));
      for (std::int64_t t = begin; t < end; ++t) {
        const R* const logits = op.logits.as<R>() + t * count;
        std::int32_t* const experts = op.experts.as<std::int32_t>() + t * k;
        R* const weights = op.weights.as<R>() + t * k;
        lse[t] = log_sum_exp(logits, count);
        if (op.bias) {
          for (std::int64_t e = 0; e < count; ++e) {
            scores[static_cast<std::size_t>(e)] =
                static_cast<R>(exp_from(logits[e], lse[t])) + static_cast<R>(op.bias.as<float>()[e]);
          }
        }
        choose(op.bias ? scores.data() : logits, count, experts, k);
        R largest = logits[experts[0]];
        for (std::int64_t s = 1; s < k; ++s) largest = std::max(largest, logits[experts[s]]);
        R sum = 0;
        for (std::int64_t s = 0; s < k; ++s) sum += weights[s] = std::exp(logits[experts[s]] - largest);
        // Weights that are not normalised are divided by the sum over all experts.
        if (!op.normalise) sum = static_cast<R>(std::exp(lse[t] - static_cast<double>(largest)));
        for (std::int64_t s = 0; s < k; ++s) weights[s] /= sum;
      }
    });
    parallel_for(op.statistics.rows(), [&](std::int64_t sequence) { count_sequence<R>(op, lse, sequence); });
  };
  if (op.logits.dtype == DType::f64) run(double{});
  if (op.logits.dtype == DType::f32) run(float{});
}

void router_losses(const RouterLosses& op) {
  const std::int64_t count = op.statistics.cols() / 2;
  const auto run = [&]<class R>(R) {
    for (std::int64_t b = 0; b < op.statistics.rows(); ++b) {
      const R* const row = op.statistics.as<R>() + b * op.statistics.cols();
      const auto weight = weight_of<double>(op.counted, b, op.seq_len);
      double dot = 0;
      for (std::int64_t e = 0; e < count; ++e) {
        dot += static_cast<double>(row[e]) * static_cast<double>(row[count + e]);
        op.loads[e] += static_cast<double>(row[e]);
      }
      op.total[0] += weight * (static_cast<double>(count) / static_cast<double>(op.seq_len) * dot);
      op.total[1] += weight * static_cast<double>(row[2 * count]);
    }
  };
  if (op.statistics.dtype == DType::f64) run(double{});
  if (op.statistics.dtype == DType::f32) run(float{});
}

void update_router_bias(const RouterBiasUpdate& op) {
  if (*op.found_inf != 0.0f) return;
  const std::int64_t count = op.bias.elements();
  double sum = 0;
  for (std::int64_t e = 0; e < count; ++e) sum += op.loads[e];
  for (std::int64_t e = 0; e < count; ++e) {
    const double missing = sum - static_cast<double>(count) * op.loads[e];
    op.bias.as<float>()[e] += static_cast<float>(op.rate) * static_cast<float>((missing > 0) - (missing < 0));
  }
}

void router_backward(const RouterBackward& op) {
  const auto run = [&]<class R>(R) {
    const std::int64_t count = op.logits.cols(), k = op.experts.cols();
    const std::int64_t tokens = op.statistics ? op.logits.rows() / op.statistics.rows() : 1;
    const R balance =
        static_cast<R>(op.statistics ? op.balance * static_cast<double>(count) / static_cast<double>(op.seq_len) : 0);
    parallel_ranges(op.logits.rows(), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const R* const logits = op.logits.as<R>() + t * count;
        R* const glogits = op.glogits.as<R>() + t * count;
        std::fill(glogits, glogits + count, R{0});
        if (op.statistics) {
          const std::int64_t sequence = t / tokens;
          const R* const assigned = op.statistics.as<R>() + sequence * op.statistics.cols();
          const R weight = weight_of<R>(op.counted, sequence, op.seq_len);
          const double lse = log_sum_exp(logits, count);
          R mean = 0;
          for (std::int64_t e = 0; e < count; ++e)
            mean += (glogits[e] = static_cast<R>(exp_from(logits[e], lse))) * assigned[e];
          const R by_z = static_cast<R>(2 * op.z * lse);
          for (std::int64_t e = 0; e < count; ++e) glogits[e] *= weight * (balance * (assigned[e] - mean) + by_z);
        }
        const std::int32_t* const experts = op.experts.as<std::int32_t>() + t * k;
        const R* const w = op.weights.as<R>() + t * k;
        const R* const gw = op.gweights.as<R>() + t * k;
        R mean = 0;
        for (std::int64_t s = 0; s < k; ++s) mean += w[s] * gw[s];
        if (op.normalise) {
          for (std::int64_t s = 0; s < k; ++s) glogits[experts[s]] += w[s] * (gw[s] - mean);
        } else {  // a weight then depends on the logits of all experts
          const double lse = log_sum_exp(logits, count);
          for (std::int64_t e = 0; e < count; ++e)
            glogits[e] -= static_cast<R>(exp_from(logits[e], lse)) * mean;
          for (std::int64_t s = 0; s < k; ++s) glogits[experts[s]] += w[s] * gw[s];
        }
      }
    });
  };
  if (op.logits.dtype == DType::f64) run(double{});
  if (op.logits.dtype == DType::f32) run(float{});
}

}  // namespace octet::kernels::cpu
