#include "octet/data/split.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "data/files.h"

namespace octet::data {
namespace {

TEST(Split, PartsShareNothingAndCoverAll) {
  for (const std::int64_t n : {1, 2, 3, 10, 97, 1000}) {
    for (const double held_out : {0.0, 0.02, 0.2, 0.5, 1.0}) {
      const Split split(n, {1 - held_out, held_out});
      std::set<std::int64_t> windows;
      for (const Part part : {Part::train, Part::held_out}) {
        for (std::int64_t i = 0; i < split.count(part); ++i) windows.insert(split.window(part, i));
      }
      EXPECT_EQ(static_cast<std::int64_t>(windows.size()), n);
      EXPECT_EQ(split.count(Part::train) + split.count(Part::held_out), n);
      EXPECT_EQ(*windows.begin(), 0);
      EXPECT_EQ(*windows.rbegin(), n - 1);
    }
  }
}

TEST(Split, FollowsTheFractions) {
  EXPECT_EQ(Split(1000, {0.98, 0.02}).count(Part::held_out), 20);
  EXPECT_EQ(Split(1000, {0.8, 0.2}).count(Part::held_out), 200);
  EXPECT_EQ(Split(1000, {1, 0}).count(Part::held_out), 0);
  EXPECT_EQ(Split(1000, {0, 1}).count(Part::train), 0);
  // Each part gets at least one window if possible. The only window of a tiny corpus goes to training.
  EXPECT_EQ(Split(5, {0.98, 0.02}).count(Part::held_out), 1);
  EXPECT_EQ(Split(2, {0.02, 0.98}).count(Part::train), 1);
  EXPECT_EQ(Split(1, {0.5, 0.5}).count(Part::train), 1);
}

TEST(Split, HoldsOutFromEverywhere) {
  const Split split(10000, {0.9, 0.1});
  std::array<int, 10> tenths{};
  for (std::int64_t i = 0; i < split.count(Part::held_out); ++i)
    ++tenths[static_cast<std::size_t>(split.window(Part::held_out, i) / 1000)];
  for (const int count : tenths) EXPECT_NEAR(count, 100, 60);  // six sigma of a binomial
}

TEST(Split, IsTheSameForEver) {
  // If these numbers changed, held-out text would move into the training of resumed runs.
  const Split split(1000, {0.98, 0.02});
  std::vector<std::int64_t> first;
  for (std::int64_t i = 0; i < 6; ++i) first.push_back(split.window(Part::held_out, i));
  EXPECT_EQ(first, (std::vector<std::int64_t>{142, 557, 518, 667, 276, 832}));
}

TEST(Split, RefusesFractionsThatMakeNoSense) {
  using Fractions = std::array<double, 2>;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const Fractions& fractions : {Fractions{0.9, 0.2}, {-0.1, 1.1}, {0.5, 0.4}, {nan, 0.5}, {infinity, 0.0}}) {
    EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { Split(10, fractions); }), "data.split"));
  }
  EXPECT_NO_THROW(Split(10, {0.7, 0.3}));
}

}  // namespace
}  // namespace octet::data
