// The loads of a run's experts: how often each was chosen, as a multiple of its fair share. The fair share is the load if all
// experts were chosen equally often.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/report/run.h"

namespace octet::report {

inline constexpr std::size_t kMaxExpertColumns = 56;

// One mixture. A column is one sampled step, or the mean over a range of them if there are more than kMaxExpertColumns.
struct ExpertSheet {
  std::string layer;
  std::size_t experts = 0, columns = 0;
  std::int64_t first_step = 0, last_step = 0;
  std::vector<double> loads;  // [expert * columns + column]; NaN if there is no sample
  // Means over the last quarter of the columns:
  std::vector<double> recent;                          // of each expert
  std::size_t fullest = 0, emptiest = 0, starved = 0;  // two experts; the number of those that starve
};

// Returns the sheets in the order of the layers.
std::vector<ExpertSheet> expert_sheets(const Run& run);

// Returns a table of all mixtures, and the picture of the least balanced ones: experts from top to bottom, steps from left to
// right. "" without experts.
std::string draw_experts(const std::vector<ExpertSheet>& sheets);

}  // namespace octet::report
