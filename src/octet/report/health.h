// FP8 health as one sheet per run: a row per linear layer, a strip over the steps for each number and operand.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/report/run.h"

namespace octet::report {

enum class HealthMetric { amax, scale, saturated, flushed, sqnr };
inline constexpr std::array kHealthMetrics{HealthMetric::amax, HealthMetric::scale, HealthMetric::saturated, HealthMetric::flushed,
                                           HealthMetric::sqnr};

// A linear layer, by its name: "model.layers.3.mlp.down_proj" is layer 3, "down_proj"; without a number, layer -1.
struct HealthRow {
  std::string name;
  std::int64_t layer = -1;
  std::string label;  // the shortest end of the name that tells it from the other rows of its layer
};

inline constexpr std::size_t kMaxHealthColumns = 56;

// The samples of a run by operand, row and column; a column is a sampled step, or where there are more than
// kMaxHealthColumns a range of them, of which the worst value stays. Rows by layer, within it in the order of the file.
struct HealthSheet {
  std::vector<HealthRow> rows;
  std::vector<std::string> operands;   // of "x", "w", "g" and "" (a name that ends in none of them) those that occur
  std::size_t columns = 0;
  std::int64_t first_step = 0, last_step = 0;
  // values[metric][operand][row * columns + column]; NaN where there is no sample.
  std::array<std::vector<std::vector<double>>, kHealthMetrics.size()> values;
};
HealthSheet health_sheet(const Run& run);

// Where a number is worst: the lowest sqnr, the highest share saturated or flushed. Empty tensor: no finite sample.
struct WorstSample {
  std::string tensor;
  std::int64_t step = 0;
  double value = telemetry::kUnknown;
};
WorstSample worst_sample(const Run& run, HealthMetric metric);

// The linear layer and the operand of a sample's tensor: "model.layers.3.mlp.down_proj" and "x", "w", "g" or "".
std::pair<std::string, std::string> split_operand(const std::string& tensor);
const char* operand_word(const std::string& operand);  // "input"
const char* title_of(HealthMetric metric);             // "signal to noise"

// The sheet as HTML.
std::string draw(const HealthSheet& sheet, const std::string& description);

}  // namespace octet::report
