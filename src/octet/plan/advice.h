// Which recipe a run should take, from the time of its linears in each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/plan/linear_kinds.h"
#include "octet/plan/time_model.h"

namespace octet::plan {

// FP8 was up to 0.3 % worse in loss where we have measured it, and predictions stand within some percent of what a GPU does: a
// smaller gain over the linears is not worth a change of precision.
inline constexpr double kWorthwhileGainPct = 5;

struct Candidate {
  std::string recipe;
  std::vector<LinearTime> times;         // of a linear of each kind
  std::vector<std::int64_t> fp8_layers;  // of each kind, as head and skip of [precision] have it
  std::size_t memory_bytes = 0;          // of the whole run
};

// What casting adds to the ops around a linear, beside BF16: the other ops of one minus those of the other.
inline double casts_seconds(const LinearTime& time, const LinearTime& bf16) { return time.others_s - bf16.others_s; }
inline double total_seconds(const LinearTime& time, const LinearTime& bf16) {
  return time.products_s + casts_seconds(time, bf16);
}
// How much more a second gets done than in BF16.
inline double gain_pct(double seconds, double bf16_seconds) { return 100 * (bf16_seconds / seconds - 1); }

// Of all linears and one micro-batch.
struct Sum {
  double seconds = 0, gain_pct = 0;
};

// A recipe as it is, and with the layers in BF16 that it had better leave there.
struct Outcome {
  std::vector<std::string> slower;  // patterns of kinds that FP8 makes slower than BF16
  std::int64_t fp8_linears = 0;     // that neither these kinds nor `keep` hold
  Sum as_is, advised;
};
// `keep`: names of layers to be left in BF16 for their numbers.
Outcome outcome_of(const std::vector<LinearKind>& kinds, const Candidate& candidate, const Candidate& bf16,
                   const std::vector<std::string>& keep);

struct Recommendation {
  std::string recipe;
  std::vector<std::string> skip;  // all of precision.skip
  std::string reason;             // a sentence
  std::string toml;               // lines to paste
};
// `candidates` begin with bf16; `skip` is what the run has already.
Recommendation recommend(const std::vector<LinearKind>& kinds, const std::vector<Candidate>& candidates,
                         const std::vector<std::string>& skip, const std::vector<std::string>& keep);

}  // namespace octet::plan
