// The FP8 health sheet of a run: one row for each linear layer, and in it a strip over the steps for each metric and operand.
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

// A linear layer. "model.layers.3.mlp.down_proj" has layer 3 and label "down_proj"; a name without a number has layer -1.
struct HealthRow {
  std::string name;
  std::int64_t layer = -1;
  std::string label;  // the shortest suffix of the name that no other row of the layer has
};

inline constexpr std::size_t kMaxHealthColumns = 56;

// The health samples of a run by operand, row and column. A column is one sampled step. If there are more than kMaxHealthColumns
// steps, a column covers a range of them and shows the range's worst value. Rows are sorted by layer, and experts by number;
// otherwise rows of one layer keep the order of the file.
struct HealthSheet {
  std::vector<HealthRow> rows;
  std::vector<std::string> operands;   // those of "x", "w", "g" and "" that occur; "" is a name without one of these endings
  std::size_t columns = 0;
  std::int64_t first_step = 0, last_step = 0;
  // values[metric][operand][row * columns + column]; NaN if there is no sample.
  std::array<std::vector<std::vector<double>>, kHealthMetrics.size()> values;
};
HealthSheet health_sheet(const Run& run);

// The sample with the worst value of a metric: the lowest sqnr, or the highest share saturated or flushed. The name of the tensor is
// empty if there is no finite sample.
struct WorstSample {
  std::string tensor;
  std::int64_t step = 0;
  double value = telemetry::kUnknown;
};
WorstSample worst_sample(const Run& run, HealthMetric metric);

// Splits the name of a sample's tensor into the linear layer ("model.layers.3.mlp.down_proj") and the operand ("x", "w", "g" or "").
std::pair<std::string, std::string> split_operand(const std::string& tensor);
const char* operand_word(const std::string& operand);  // "input"
const char* title_of(HealthMetric metric);             // "signal to noise"

// Draws the sheet as HTML.
std::string draw(const HealthSheet& sheet, const std::string& description);

}  // namespace octet::report
