#include "octet/kernels/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"
#include "support/grad_check.h"

namespace octet::kernels {
namespace {

using testing::compute_roundoff;
using testing::near;
using testing::values_of;

struct Routed {
  Tensor experts, weights, statistics;
};

struct RouterTest : testing::OpTest {
  Routed route(const Tensor& logits, std::int64_t k, std::int64_t sequences, bool normalise = true, const Tensor& bias = {}) {
    const std::int64_t tokens = logits.rows();
    const Routed r{.experts = zeros(DType::i32, {tokens, k}),
                   .weights = zeros(logits.dtype, {tokens, k}),
                   .statistics = zeros(logits.dtype, {sequences, 2 * logits.cols() + 1})};
    router_forward(*stream, scratch,
                   {.logits = logits,
                    .bias = bias,
                    .experts = r.experts,
                    .weights = r.weights,
                    .statistics = r.statistics,
                    .normalise = normalise});
    return r;
  }
};

TEST_F(RouterTest, ForwardIsTheFormula) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const auto& [experts, k] : {std::pair<std::int64_t, std::int64_t>{8, 2}, {3, 3}, {64, 6}, {1, 1}}) {
      const std::int64_t sequences = 2, length = 150;
      const Tensor logits = random(dtype, {sequences * length, experts}, 2.0);
      const Routed r = route(logits, k, sequences);
      const auto l = values_of(logits);
      std::vector<double> chosen, weights, probabilities, statistics(static_cast<std::size_t>(sequences * (2 * experts + 1)));
      for (std::int64_t t = 0; t < sequences * length; ++t) {
        const double* row = l.data() + t * experts;
        double* sums = statistics.data() + t / length * (2 * experts + 1);
        std::vector<int> order(static_cast<std::size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
        double all = 0, best = 0;
        for (std::int64_t e = 0; e < experts; ++e) all += std::exp(row[e]);
        for (std::int64_t s = 0; s < k; ++s) best += std::exp(row[order[static_cast<std::size_t>(s)]]);
        for (std::int64_t s = 0; s < k; ++s) {
          const int e = order[static_cast<std::size_t>(s)];
          chosen.push_back(e);
          weights.push_back(std::exp(row[e]) / best);
          probabilities.push_back(std::exp(row[e]) / all);
          sums[e] += 1;
        }
        for (std::int64_t e = 0; e < experts; ++e) sums[experts + e] += std::exp(row[e]) / all;
        sums[2 * experts] += std::log(all) * std::log(all);
      }
      // exp errs by at most 2 ulp. Its argument is rounded once and is at most the spread of the logits.
      const double spread =
          2 * *std::max_element(l.begin(), l.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
      const double roundoff = gamma(2 * std::abs(spread) + 8 + static_cast<double>(experts), compute_roundoff(dtype));
      EXPECT_EQ(values_of(r.experts), chosen) << name_of(dtype) << " " << experts << " experts";
      EXPECT_TRUE(near(r.weights, weights, {.relative = roundoff})) << name_of(dtype) << " " << experts << " experts";
      const Routed plain = route(logits, k, sequences, false);
      EXPECT_EQ(values_of(plain.experts), chosen);
      EXPECT_TRUE(near(plain.weights, probabilities, {.relative = 2 * roundoff})) << name_of(dtype) << " not normalised";
      EXPECT_TRUE(near(values_of(r.statistics), statistics, {.relative = 2 * roundoff})) << name_of(dtype) << " " << experts;
    }
  }
}

// The choice takes the largest p + bias; the weights, the sums of p and lse know no bias.
TEST_F(RouterTest, ABiasMovesTheChoiceAlone) {
  const std::int64_t tokens = 200, experts = 12, k = 3;
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor logits = random(dtype, {tokens, experts}, 2.0), bias = random(DType::f32, {experts}, 0.2);
    const auto l = values_of(logits), b = values_of(bias);
    for (const bool normalise : {true, false}) {
      const Routed r = route(logits, k, 1, normalise, bias), plain = route(logits, k, 1, normalise);
      const auto chosen = values_of(r.experts), weights = values_of(r.weights);
      std::vector<double> expected, assigned(static_cast<std::size_t>(experts));
      for (std::int64_t t = 0; t < tokens; ++t) {
        const double* row = l.data() + t * experts;
        double all = 0, of_chosen = 0;
        for (std::int64_t e = 0; e < experts; ++e) all += std::exp(row[e]);
        const auto score = [&](double e) {
          return std::exp(row[static_cast<std::size_t>(e)]) / all + b[static_cast<std::size_t>(e)];
        };
        const auto first = chosen.begin() + t * k;
        double least = 1e9;
        for (auto at = first; at != first + k; ++at) {
          EXPECT_EQ(std::count(first, first + k, *at), 1);
          least = std::min(least, score(*at));
          of_chosen += std::exp(row[static_cast<std::size_t>(*at)]);
          assigned[static_cast<std::size_t>(*at)] += 1;
        }
        for (std::int64_t e = 0; e < experts; ++e) {
          const auto other = static_cast<double>(e);
          if (std::find(first, first + k, other) == first + k) {
            EXPECT_LE(score(other), least + 1e-6) << "token " << t;
          }
        }
        for (auto at = first; at != first + k; ++at)
          expected.push_back(std::exp(row[static_cast<std::size_t>(*at)]) / (normalise ? of_chosen : all));
      }
      EXPECT_TRUE(near(r.weights, expected, {.relative = gamma(64, compute_roundoff(dtype))})) << name_of(dtype);
      auto statistics = values_of(plain.statistics);
      std::copy(assigned.begin(), assigned.end(), statistics.begin());
      EXPECT_EQ(values_of(r.statistics), statistics) << name_of(dtype);
    }
    const Tensor none = zeros(DType::f32, {experts});
    EXPECT_EQ(values_of(route(logits, k, 1, true, none).weights), values_of(route(logits, k, 1).weights));
  }
}

TEST_F(RouterTest, ABiasMovesTowardsTheMeanLoad) {
  const Tensor bias = filled(DType::f32, {4}, [](std::int64_t e) { return static_cast<double>(e); });
  const std::vector<double> loads = {10, 0, 5, 5};
  float found_inf = 1;
  const RouterBiasUpdate update{.bias = bias, .loads = loads.data(), .rate = 0.25, .found_inf = &found_inf};
  update_router_bias(*stream, update);
  EXPECT_EQ(values_of(bias), (std::vector<double>{0, 1, 2, 3})) << "a step that is skipped";
  found_inf = 0;
  update_router_bias(*stream, update);
  EXPECT_EQ(values_of(bias), (std::vector<double>{-0.25, 1.25, 2, 3}));
}

TEST_F(RouterTest, EqualLogitsGoToTheFirst) {
  const Tensor logits = filled(DType::f32, {2, 5}, [](std::int64_t i) { return i < 5 ? 1.0 : static_cast<double>(i % 2); });
  const Routed r = route(logits, 2, 1);
  EXPECT_EQ(values_of(r.experts), (std::vector<double>{0, 1, 0, 2}));
}

// NaN and infinite logits must not lead to an expert that does not exist, or to the same expert twice.
TEST_F(RouterTest, LogitsThatAreNotNumbersGoToDifferentExperts) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<double> rows = {nan, nan, nan, nan, nan, 1, nan, 2, -inf, -inf, -inf, -inf, inf, inf, 0, 0};
  const Tensor logits = filled(DType::f32, {4, 4}, [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; });
  for (const Tensor& bias : {Tensor{}, zeros(DType::f32, {4})}) {
    const auto experts = values_of(route(logits, 3, 1, true, bias).experts);
    for (std::size_t t = 0; t < 4; ++t) {
      std::vector<double> row(experts.begin() + static_cast<std::ptrdiff_t>(3 * t),
                              experts.begin() + static_cast<std::ptrdiff_t>(3 * t + 3));
      std::sort(row.begin(), row.end());
      EXPECT_TRUE(row[0] >= 0 && row[0] < row[1] && row[1] < row[2] && row[2] < 4) << "token " << t;
    }
  }
}

// Checks the derivative of f = sum of gweights * weights + balance + z, with balance and z as in losses(), of sequences of which
// all or some tokens count. The choice of experts is held constant.
TEST_F(RouterTest, BackwardIsTheDerivative) {
  const std::int64_t experts = 6, k = 2, sequences = 2, length = 7;
  // The logits lie so far apart that the finite differences do not change any choice.
  const Tensor logits = filled(DType::f64, {sequences * length, experts}, [&](std::int64_t i) {
    const std::int64_t t = i / experts, e = i % experts;
    return 0.4 * static_cast<double>((5 * e + t) % experts) + 0.01 * static_cast<double>((3 * t + e) % 11);
  });
  const Tensor gweights = random(DType::f64, {sequences * length, k});
  struct Case {
    bool losses, normalise;
    std::vector<std::int32_t> counted = {length, length};
  };
  for (const auto& [losses, normalise, counted] :
       {Case{false, true}, {true, true}, {false, false}, {true, false}, {true, true, {3, length}}, {true, true, {0, 5}}}) {
    const double balance = losses ? 0.7 : 0, z = losses ? 0.3 : 0;
    const bool adds_up = normalise, all_count = counted == std::vector<std::int32_t>(2, length);
    const std::vector<std::int32_t> tokens = counted;
    const Routed r = route(logits, k, sequences, normalise);
    const Tensor glogits = zeros(DType::f64, logits.shape);
    router_backward(*stream, {.logits = logits,
                              .experts = r.experts,
                              .weights = r.weights,
                              .gweights = gweights,
                              .statistics = losses ? r.statistics : Tensor{},
                              .counted = all_count ? Tensor{} : integers(counted),
                              .seq_len = length,
                              .balance = balance,
                              .z = z,
                              .normalise = normalise,
                              .glogits = glogits});
    const auto f = [&] {
      const Routed now = route(logits, k, sequences, adds_up);
      double sum = 0;
      for (std::int64_t b = 0; b < sequences; ++b) {
        double total[2] = {};
        std::vector<double> loads(static_cast<std::size_t>(logits.cols()));
        const Tensor sequence = now.statistics.slice_rows(b, b + 1);
        router_losses(*stream, {.statistics = sequence, .seq_len = length, .total = total, .loads = loads.data()});
        sum += tokens[static_cast<std::size_t>(b)] / static_cast<double>(length) * (balance * total[0] + z * total[1]);
      }
      for (std::int64_t i = 0; i < gweights.elements(); ++i) sum += gweights.as<double>()[i] * now.weights.as<double>()[i];
      return sum;
    };
    EXPECT_TRUE(testing::gradient_agrees(
        {.name = "logits", .x = logits.as<double>(), .gradient = glogits.as<double>(), .count = logits.elements(), .f = f}))
        << (losses ? "with losses" : "without") << (normalise ? "" : ", not normalised") << (all_count ? "" : ", masked");
  }
}

// A mask changes what a loss weighs, but not the loads. If all tokens count, no bit may differ from a call without counts.
TEST_F(RouterTest, LossesWeighAsTheirTokensCount) {
  const std::int64_t length = 24;
  const auto run = [&](DType dtype, const Tensor& counted) {
    const Tensor logits = filled(dtype, {2 * length, 5}, [](std::int64_t i) { return std::sin(static_cast<double>(i * i)); });
    const Tensor gweights = filled(dtype, {2 * length, 2}, [](std::int64_t i) { return std::cos(static_cast<double>(i)); });
    const Routed r = route(logits, 2, 2);
    const Tensor total = zeros(DType::f64, {2}), loads = zeros(DType::f64, {5}), glogits = zeros(dtype, logits.shape);
    router_losses(*stream, {.statistics = r.statistics,
                            .counted = counted,
                            .seq_len = length,
                            .total = total.as<double>(),
                            .loads = loads.as<double>()});
    router_backward(*stream, {.logits = logits,
                              .experts = r.experts,
                              .weights = r.weights,
                              .gweights = gweights,
                              .statistics = r.statistics,
                              .counted = counted,
                              .seq_len = length,
                              .balance = 0.7,
                              .z = 0.3,
                              .glogits = glogits});
    return std::array{total, loads, glogits};
  };
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto all = run(dtype, {}), counted = run(dtype, integers({24, 24})), half = run(dtype, integers({12, 12}));
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(testing::same_bytes(counted[i], all[i])) << name_of(dtype) << " " << i;
    for (const std::size_t loss : {0, 1}) EXPECT_EQ(values_of(half[0])[loss], values_of(all[0])[loss] / 2);
    EXPECT_TRUE(testing::same_bytes(half[1], all[1]));
  }
}

TEST_F(RouterTest, LoadsCountTheChoicesOfAllSequences) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor logits = random(dtype, {3 * 50, 9});
    const Routed r = route(logits, 2, 3);
    double total[2] = {};
    std::vector<double> loads(9, 0.0), expected(9, 0.0);
    for (int pass = 0; pass < 2; ++pass) {  // they add up
      router_losses(*stream, {.statistics = r.statistics, .seq_len = 50, .total = total, .loads = loads.data()});
      for (std::int64_t i = 0; i < r.experts.elements(); ++i)
        ++expected[static_cast<std::size_t>(r.experts.as<std::int32_t>()[i])];
    }
    EXPECT_EQ(loads, expected);
  }
}

// The balance loss is smallest, 1, if all experts get the same number of tokens. It is E if all tokens go to one expert.
TEST_F(RouterTest, BalanceIsLeastWhenExpertsAreChosenAlike) {
  const std::int64_t experts = 4, length = 8;
  const auto balance = [&](const std::function<double(std::int64_t)>& logit) {
    const Routed r = route(filled(DType::f64, {length, experts}, logit), 1, 1);
    double total[2] = {}, loads[4] = {};
    router_losses(*stream, {.statistics = r.statistics, .seq_len = length, .total = total, .loads = loads});
    return total[0] / static_cast<double>(length);
  };
  EXPECT_NEAR(balance([&](std::int64_t i) { return i / experts % experts == i % experts ? 50.0 : 0.0; }), 1.0, 1e-12);
  EXPECT_NEAR(balance([&](std::int64_t i) { return i % experts == 2 ? 50.0 : 0.0; }), 4.0, 1e-12);
}

TEST_F(RouterTest, BitsDoNotDependOnThreads) {
  const Tensor logits = random(DType::f32, {1024, 8}), gweights = random(DType::f32, {1024, 2});
  expect_same_for_any_threads([&] {
    const Routed r = route(logits, 2, 4);
    const Tensor glogits = zeros(DType::f32, logits.shape);
    router_backward(*stream, {.logits = logits,
                              .experts = r.experts,
                              .weights = r.weights,
                              .gweights = gweights,
                              .statistics = r.statistics,
                              .seq_len = 256,
                              .balance = 1,
                              .z = 1,
                              .glogits = glogits});
    return std::vector<Tensor>{r.experts, r.weights, r.statistics, glogits};
  });
}

TEST_F(RouterTest, Refusals) {
  const Tensor logits = random(DType::f32, {4, 3}), statistics = zeros(DType::f32, {1, 7});
  expect_refusal(
      [&] {
        router_forward(*stream, scratch,
                       {.logits = logits,
                        .experts = zeros(DType::i32, {4, 5}),
                        .weights = zeros(DType::f32, {4, 5}),
                        .statistics = statistics});
      },
      "5 experts a token, of 3");
  expect_refusal(
      [&] {
        router_forward(*stream, scratch,
                       {.logits = logits,
                        .experts = zeros(DType::i32, {4, 2}),
                        .weights = zeros(DType::f32, {4, 2}),
                        .statistics = zeros(DType::f32, {3, 7})});
      },
      "statistics");
  double total[2] = {}, loads[3] = {};
  expect_refusal(
      [&] {
        router_losses(*stream,
                      {.statistics = statistics, .counted = integers({1, 2}), .seq_len = 4, .total = total, .loads = loads});
      },
      "counted must be I32 [1]");
}

}  // namespace
}  // namespace octet::kernels
