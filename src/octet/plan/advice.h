// Recommends a recipe for a run, from the time of its linears in each recipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "octet/plan/linear_kinds.h"
#include "octet/plan/time_model.h"

namespace octet::plan {

// The smallest gain over all linears for which FP8 is recommended. In our measurements FP8 increased the loss by up to 0.3%, and
// predicted times are wrong by some percent, so a smaller gain does not justify a change of precision.
inline constexpr double kWorthwhileGainPct = 5;

struct Candidate {
  std::string recipe;
  std::vector<LinearTime> times;         // times[i]: one linear of kind i
  std::vector<std::int64_t> fp8_layers;  // fp8_layers[i]: FP8 linears of kind i, given head and skip of [precision]
  std::vector<std::int64_t> healthy_layers;  // those of fp8_layers[i] that FP8 represents well (health_verdict.h)
  std::size_t memory_bytes = 0;          // memory of the whole run on a GPU, given skip of [precision]
};

// The time that the casts of a linear cost: the ops around its products, minus the ops around its products in BF16.
inline double casts_seconds(const LinearTime& time, const LinearTime& bf16) { return time.others_s - bf16.others_s; }
inline double total_seconds(const LinearTime& time, const LinearTime& bf16) {
  return time.products_s + casts_seconds(time, bf16);
}
// The gain in speed over BF16, in percent.
inline double gain_pct(double seconds, double bf16_seconds) { return 100 * (bf16_seconds / seconds - 1); }

// The time of all linears in one micro-batch, and its gain over BF16.
struct Sum {
  double seconds = 0, gain_pct = 0;
};

// What a recipe gains as it is, and when the layers that should stay in BF16 do so.
struct Outcome {
  std::vector<std::string> slower;  // patterns of the kinds that are slower in FP8 than in BF16
  std::int64_t fp8_linears = 0;     // linears that remain in FP8: healthy and not of a slower kind
  std::int64_t unhealthy = 0;       // FP8 linears that should stay in BF16 for their health alone
  Sum as_is, advised;
};
Outcome outcome_of(const std::vector<LinearKind>& kinds, const Candidate& candidate, const Candidate& bf16);

struct Recommendation {
  std::string recipe;
  std::vector<std::string> skip;  // the complete new value of precision.skip
  std::string reason;             // a sentence
  std::string toml;               // lines to paste into the configuration
};
// The first candidate must be bf16. `skip` is the current value of precision.skip. `keep` holds the names of the linears that FP8
// represents badly. `memory_of` returns the memory of the whole run on a GPU with another recipe and another value of
// precision.skip.
Recommendation recommend(
    const std::vector<LinearKind>& kinds, const std::vector<Candidate>& candidates, const std::vector<std::string>& skip,
    const std::vector<std::string>& keep,
    const std::function<std::size_t(const std::string& recipe, const std::vector<std::string>& skip)>& memory_of);

}  // namespace octet::plan
