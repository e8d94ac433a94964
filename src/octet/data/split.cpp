#include "octet/data/split.h"

#include <algorithm>
#include <cmath>

#include "octet/base/require.h"

namespace octet::data {
namespace {

// A constant of the program: the held-out windows must not change with the run's seed.
constexpr std::uint64_t kSplitSeed = 0x6F63746574'5350ull;

std::int64_t held_out_windows(std::int64_t windows, std::array<double, 2> fractions) {
  const auto [train, held_out] = fractions;
  demand(train >= 0 && held_out >= 0 && std::abs(train + held_out - 1) <= 1e-6, ExitCode::config, "data.split = [", train, ", ",
         held_out, "]: the two fractions must not be negative and their sum must be 1");
  const auto wanted = static_cast<std::int64_t>(std::llround(static_cast<double>(windows) * held_out));
  const std::int64_t least = held_out > 0 && windows >= 2 ? 1 : 0;
  const std::int64_t most = train > 0 ? windows - 1 : windows;
  return std::clamp(wanted, least, std::max(least, most));
}

}  // namespace

Split::Split(std::int64_t windows, std::array<double, 2> fractions)
    : order_(windows, kSplitSeed, 0, name_id("split")), held_out_(held_out_windows(windows, fractions)) {}

std::int64_t Split::window(Part part, std::int64_t i) const {
  require(i >= 0 && i < count(part), "split: item ", i, " of ", count(part));
  return order_(part == Part::held_out ? i : held_out_ + i);
}

}  // namespace octet::data
