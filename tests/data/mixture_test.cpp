#include "octet/data/mixture.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "data/files.h"

namespace octet::data {
namespace {

TEST(Mixture, OneSourceGivesEverything) {
  const Mixture mixture(std::vector<double>{0.3});
  for (const std::int64_t p : {std::int64_t{0}, std::int64_t{1}, std::int64_t{123456789}, INT64_MAX}) {
    EXPECT_EQ(mixture(p).source, 0);
    EXPECT_EQ(mixture(p).ordinal, p);
  }
}

// Checks that each source's ordinals count up by one over several periods, and that in no prefix a source is off by a whole
// sample.
void expect_even(const std::vector<double>& weights) {
  const Mixture mixture(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> drawn(weights.size(), 0);
  for (std::size_t s = 0; s < weights.size(); ++s) {
    EXPECT_LE(std::abs(mixture.share(static_cast<std::int64_t>(s)) - weights[s] / sum), 1.0 / 65536) << "source " << s;
  }
  for (std::int64_t p = 0; p < 150000; ++p) {
    const auto [source, ordinal] = mixture(p);
    ASSERT_EQ(ordinal, drawn[static_cast<std::size_t>(source)]++) << "p " << p;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const double share = mixture.share(static_cast<std::int64_t>(s)) * static_cast<double>(p + 1);
      ASSERT_LT(std::abs(static_cast<double>(drawn[s]) - share), 1 + 1e-9) << "p " << p << " source " << s;
    }
  }
}

TEST(Mixture, EveryPrefixHasTheWantedProportions) {
  expect_even({1, 1});
  expect_even({3, 1});
  expect_even({0.7, 0.2, 0.1});
  expect_even({1, 1, 1});
  expect_even({0.5, 0.001, 0.3, 0.01, 0.1});
  expect_even({1e-3, 1e3});
  std::vector<double> many;
  for (int i = 1; i <= 12; ++i) many.push_back(1.0 / i);
  expect_even(many);
}

TEST(Mixture, TheSmallestWeightIsNeverForgotten) {
  const Mixture mixture(std::vector<double>{1, 1e-12, 1});
  EXPECT_DOUBLE_EQ(mixture.share(1), 1.0 / 65536);
  std::int64_t seen = 0;
  for (std::int64_t p = 0; p < 65536; ++p) seen += mixture(p).source == 1 ? 1 : 0;
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(mixture(std::int64_t{65536} << 30).ordinal / (std::int64_t{1} << 30), mixture.share(mixture(0).source) * 65536);
}

TEST(Mixture, CountsWhatEachSourceHasGiven) {
  const Mixture mixture(std::vector<double>{3, 1, 2.5});
  std::vector<std::int64_t> counted(3, 0);
  for (std::int64_t p = 0; p < 150'000; ++p) {
    if (p % 997 == 0) {
      for (std::int64_t s = 0; s < 3; ++s) ASSERT_EQ(mixture.drawn(s, p), counted[static_cast<std::size_t>(s)]) << s << ", " << p;
    }
    ++counted[static_cast<std::size_t>(mixture(p).source)];
  }
}

TEST(Mixture, ManySources) {
  std::vector<double> weights(1024, 1.0);
  weights[7] = 1e6;
  const Mixture mixture(weights);
  EXPECT_NEAR(mixture.share(7), (65536.0 - 1023) / 65536, 1e-12);
}

TEST(Mixture, RefusesWeightsThatMakeNoSense) {
  for (const std::vector<double>& weights : {std::vector<double>{},
                                             {0.0},
                                             {1, -1},
                                             {1, std::nan("")},
                                             {1, std::numeric_limits<double>::infinity()},
                                             std::vector<double>(1025, 1.0)}) {
    EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { Mixture{weights}; }), "data.source"));
  }
}

}  // namespace
}  // namespace octet::data
