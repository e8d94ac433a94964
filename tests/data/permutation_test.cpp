#include "octet/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace octet::data {
namespace {

void expect_bijection(std::int64_t n, std::uint64_t seed, std::uint32_t epoch) {
  const Permutation order(n, seed, epoch, 3);
  std::vector<bool> seen(static_cast<std::size_t>(n), false);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t value = order(i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, n);
    ASSERT_FALSE(seen[static_cast<std::size_t>(value)]) << "n " << n << ": " << value << " comes twice";
    seen[static_cast<std::size_t>(value)] = true;
  }
}

TEST(Permutation, IsABijection) {
  for (std::int64_t n = 1; n <= 300; ++n)
    expect_bijection(n, static_cast<std::uint64_t>(n) * 77, static_cast<std::uint32_t>(n % 3));
  for (const std::int64_t n : {1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 100003}) expect_bijection(n, 42, 1);
}

TEST(Permutation, WorksAtTheEndOfTheRange) {
  const Permutation order(INT64_MAX, 5, 0, 0);
  std::set<std::int64_t> values;
  for (std::int64_t i = 0; i < 1000; ++i) {
    for (const std::int64_t at : {i, INT64_MAX - 1 - i}) {
      const std::int64_t value = order(at);
      EXPECT_GE(value, 0);
      EXPECT_LT(value, INT64_MAX);
      values.insert(value);
    }
  }
  EXPECT_EQ(values.size(), 2000u);
}

TEST(Permutation, DependsOnEverythingAndNothingElse) {
  const auto order = [](std::uint64_t seed, std::uint32_t epoch, std::uint32_t subject) {
    const Permutation permutation(1000, seed, epoch, subject);
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < 1000; ++i) values.push_back(permutation(i));
    return values;
  };
  const auto base = order(1, 0, 0);
  EXPECT_EQ(base, order(1, 0, 0));
  for (const auto& other : {order(2, 0, 0), order(std::uint64_t{1} << 40 | 1, 0, 0), order(1, 1, 0), order(1, 0, 1)}) {
    int same = 0;
    for (std::size_t i = 0; i < 1000; ++i) same += base[i] == other[i] ? 1 : 0;
    EXPECT_LT(same, 20);  // one on average
  }
}

// Over many seeds, each value must appear equally often at each place. The test is chi-squared with (n - 1)^2 degrees of freedom,
// within 6 sigma.
TEST(Permutation, IsUniformOverSeeds) {
  for (const std::int64_t n : {2, 3, 5, 8, 11}) {
    constexpr int kSeeds = 20000;
    std::vector<double> counts(static_cast<std::size_t>(n * n), 0.0);
    for (int seed = 0; seed < kSeeds; ++seed) {
      const Permutation order(n, static_cast<std::uint64_t>(seed), 0, 0);
      for (std::int64_t i = 0; i < n; ++i) counts[static_cast<std::size_t>(i * n + order(i))] += 1;
    }
    const double expected = static_cast<double>(kSeeds) / static_cast<double>(n);
    double chi2 = 0;
    for (const double count : counts) chi2 += (count - expected) * (count - expected) / expected;
    const auto freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi2, freedom + 6 * std::sqrt(2 * freedom) + 20) << "n " << n;
  }
}

}  // namespace
}  // namespace octet::data
