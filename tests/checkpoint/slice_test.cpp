#include "octet/checkpoint/slice.h"

#include <set>

#include "checkpoint/files.h"
#include "octet/base/rng.h"

namespace octet::checkpoint {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : rng_(seed, RngStream::test) {}
  // Returns a uniform random number in [0, count).
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(rng_.word64(position_++) % static_cast<std::uint64_t>(count));
  }

 private:
  Rng rng_;
  std::uint64_t position_ = 0;
};

// Lists the global indices of a slice's elements in order, by going through all coordinates.
std::vector<std::int64_t> indices_of(const Shape& global, const Slice& slice) {
  std::vector<std::int64_t> box;
  for (std::int64_t index = 0; index < global.elements(); ++index) {
    std::int64_t rest = index;
    bool inside = true;
    for (int d = global.rank() - 1; d >= 0; --d) {
      const std::int64_t coordinate = rest % global[d];
      rest /= global[d];
      inside = inside && slice.start[d] <= coordinate && coordinate < slice.stop[d];
    }
    if (inside) box.push_back(index);
  }
  return {box.begin() + slice.begin, box.begin() + slice.end};
}

Shape random_shape(Dice& dice) {
  Shape shape;
  for (std::int64_t rank = dice.below(5); rank > 0; --rank) shape.push_back(1 + dice.below(6));
  return shape;
}

Slice random_slice(Dice& dice, const Shape& global) {
  Shape start, stop;
  for (int d = 0; d < global.rank(); ++d) {
    const std::int64_t a = dice.below(global[d] + 1), b = dice.below(global[d] + 1);
    const bool full = dice.below(3) == 0;
    start.push_back(full ? 0 : std::min(a, b));
    stop.push_back(full ? global[d] : std::max(a, b));
  }
  Slice slice = Slice::box(start, stop);
  if (dice.below(2) == 0) {
    const std::int64_t a = dice.below(slice.end + 1), b = dice.below(slice.end + 1);
    slice.begin = std::min(a, b);
    slice.end = std::max(a, b);
  }
  return slice;
}

TEST(Slice, CopiesExactlyWhatTwoSlicesShare) {
  Dice dice(1);
  std::int64_t shared = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    const Shape global = random_shape(dice);
    const Slice from = random_slice(dice, global), to = random_slice(dice, global);
    const auto source = indices_of(global, from), target = indices_of(global, to);
    const std::set<std::int64_t> held(source.begin(), source.end());
    std::vector<std::int64_t> expected, actual(target.size(), -1);
    std::int64_t count = 0;
    for (const std::int64_t index : target) {
      expected.push_back(held.contains(index) ? index : -1);
      count += held.contains(index);
    }
    const std::int64_t copied = copy_overlap(global, from, source.data(), to, actual.data(), sizeof(std::int64_t));
    ASSERT_EQ(copied, count) << global << ": " << from.text() << " into " << to.text();
    ASSERT_EQ(actual, expected) << global << ": " << from.text() << " into " << to.text();
    shared += count;
  }
  EXPECT_GT(shared, 10'000);
}

TEST(Slice, TellsTilingsFromWhatOnlyLooksLikeThem) {
  Dice dice(2);
  int tilings = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    const Shape global = random_shape(dice);
    std::vector<Slice> slices;
    if (dice.below(2) == 0) {
      for (std::int64_t n = dice.below(4); n > 0; --n) slices.push_back(random_slice(dice, global));
    } else {
      // Cuts a dim in two, and each part into two flat ranges. Sometimes moves one bound.
      const int d = global.rank() > 0 ? static_cast<int>(dice.below(global.rank())) : -1;
      Slice a = Slice::whole(global), b = a;
      if (d >= 0) {
        a.stop[d] = b.start[d] = dice.below(global[d] + 1);
        a.end = a.box_shape().elements();
        b.end = b.box_shape().elements();
      } else {
        b.end = 0;
      }
      Slice c = a;
      a.end = c.begin = dice.below(a.end + 1);
      if (dice.below(3) == 0 && c.begin > 0) --c.begin;
      slices = {b, c, a};
    }
    std::vector<int> times(static_cast<std::size_t>(global.elements()), 0);
    for (const Slice& slice : slices) {
      for (const std::int64_t index : indices_of(global, slice)) ++times[static_cast<std::size_t>(index)];
    }
    const bool expected = std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
    ASSERT_EQ(tile_exactly(global, slices), expected) << global;
    tilings += expected;
  }
  EXPECT_GT(tilings, 1000);
}

TEST(Slice, BoundsAreChecked) {
  const Shape global = {4, 6};
  EXPECT_TRUE(is_within(Slice::whole(global), global));
  EXPECT_TRUE(is_within(Slice::flat(global, 24, 24), global));
  EXPECT_FALSE(is_within(Slice::flat(global, 0, 25), global));
  EXPECT_FALSE(is_within(Slice::flat(global, 5, 4), global));
  EXPECT_FALSE(is_within(Slice::flat(global, -1, 4), global));
  EXPECT_FALSE(is_within(Slice::box({0, 0}, {5, 6}), global));
  EXPECT_FALSE(is_within(Slice::box({3, 0}, {2, 6}), global));
  EXPECT_FALSE(is_within(Slice::box({0}, {4}), global));
  const Shape huge = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_FALSE(is_within(Slice::flat(huge, 0, 1), huge));
  EXPECT_EQ(Slice::box({0, 2}, {4, 6}).text(), "[0, 4) x [2, 6), elements [0, 16)");
}

// A hostile manifest cannot make this check slow, because its time does not depend on the numbers.
TEST(Slice, HugeTilingsAreJudgedAtOnce) {
  const std::int64_t rows = std::int64_t{1} << 40;
  const Shape global = {rows, 3};
  const Slice left = Slice::box({0, 0}, {rows, 2}), middle = Slice::box({0, 1}, {rows, 2}), right = Slice::box({0, 2}, {rows, 3});
  EXPECT_TRUE(tile_exactly(global, std::vector<Slice>{right, left}));
  EXPECT_FALSE(tile_exactly(global, std::vector<Slice>{middle, left}));
  EXPECT_FALSE(tile_exactly(global, std::vector<Slice>{left, middle, right}));
}

}  // namespace
}  // namespace octet::checkpoint
