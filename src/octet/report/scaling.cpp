#include "octet/report/scaling.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "octet/report/charts.h"
#include "octet/report/page.h"
#include "octet/report/text_table.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

bool on_gpu(const Comparison& comparison) { return worker_of(comparison) == telemetry::Worker::gpu; }
const char* ranks_word(const Comparison& comparison) { return on_gpu(comparison) ? "GPUs" : "ranks"; }
std::string ranks_text(const Comparison& comparison, std::int64_t ranks) {
  return telemetry::format_count(ranks, on_gpu(comparison) ? "GPU" : "rank");
}
std::string_view speed_word(const Comparison& comparison) { return telemetry::rate_title(worker_of(comparison)); }

// Returns the indices of all rows except repeats, sorted by the number of ranks.
std::vector<std::size_t> by_ranks(const Comparison& comparison) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    if (!comparison.rows[i].is_repeat) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return comparison.rows[a].summary.processes < comparison.rows[b].summary.processes;
  });
  return order;
}

std::string unsigned_percent(double value) { return std::isfinite(value) ? fmt::format("{:.1f}%", value) : "-"; }

std::string what_is_compared(const Comparison& comparison) {
  std::string text =
      fmt::format("Loss: mean over the last tenth of the steps. Decrease: of {}, from the same recipe's on the fewest {}.",
                  speed_word(comparison), ranks_word(comparison));
  if (!comparison.baseline.empty()) {
    text += fmt::format(" Faster, and loss higher: than {} on the same number.", comparison.baseline);
  }
  if (has_equal_losses(comparison)) text += " " + equal_loss_sentences(comparison);
  return text;
}

// The rows of one name, sorted by the number of ranks.
struct Line {
  std::string name, colour;
  std::vector<const Row*> rows;
};
std::vector<Line> lines_of(const Comparison& comparison, std::span<const std::string> colours) {
  std::vector<Line> lines;
  for (const std::size_t i : by_ranks(comparison)) {
    const Row& row = comparison.rows[i];
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& l) { return l.name == row.summary.name; });
    if (line == lines.end()) line = lines.insert(line, {row.summary.name, colours.empty() ? "" : colours[i], {}});
    line->rows.push_back(&row);
  }
  return lines;
}

// The range of the y axis. Rates start at zero, so that the heights of two rates show their ratio. Losses fill the chart.
enum class Range { from_zero, of_values };

std::string chart_over_ranks(const Comparison& comparison, const std::vector<Line>& lines, double Summary::*field, Range range,
                             LineChart chart) {
  std::set<double> ranks;
  double low = INFINITY, high = -INFINITY;
  for (const Line& line : lines) {
    Series series{.name = line.name, .colour = line.colour, .raw = {}, .line = {}};
    for (const Row* row : line.rows) {
      const Point point{static_cast<double>(row->summary.processes), row->summary.*field};
      if (!std::isfinite(point.y)) continue;
      ranks.insert(point.x);
      low = std::min(low, point.y);
      high = std::max(high, point.y);
      series.line.push_back(point);
    }
    series.marks = series.line;
    chart.series.push_back(std::move(series));
  }
  const double margin = range == Range::from_zero ? 0.08 * high : std::max(0.1 * (high - low), 0.002 * std::abs(high));
  chart.y_low = range == Range::from_zero ? 0 : low - margin;
  chart.y_high = high + margin;
  chart.x_kind = ScaleKind::logarithmic;
  chart.x_ticks.assign(ranks.begin(), ranks.end());
  chart.x_label = ranks_word(comparison);
  chart.x_text = [&](double x) { return ranks_text(comparison, std::llround(x)); };
  chart.width = 520;
  chart.height = 320;
  return draw(chart);
}

std::string table(const Comparison& comparison, std::span<const std::string> colours) {
  std::string out;
  const bool bubbles = has_bubbles(comparison), equal = has_equal_losses(comparison);
  put(out,
      "<table class=\"cards\"><thead><tr><th>{}</th><th class=\"words\">recipe</th><th>{}<br>% "
      "faster</th><th>%<br>decrease</th>{}"
      "<th>loss<br>% "
      "higher</th><th>TFLOPS<br>MFU</th><th>peak<br>memory</th><th>exposed<br>communication</th>{}</tr></thead><tbody>",
      ranks_word(comparison), speed_word(comparison), equal ? "<th>speed-up at<br>equal loss</th>" : "",
      bubbles ? "<th>pipeline<br>bubble</th>" : "");
  for (const std::size_t i : by_ranks(comparison)) {
    const Row& row = comparison.rows[i];
    const Summary& s = row.summary;
    out += "<tr>" + cell(ranks_word(comparison), telemetry::format_count(s.processes), "lead-number");
    put(out, "<td class=\"name words\"><span class=\"swatch {}\"></span>{}</td>", colours[i], escape(s.name));
    // A speed on a CPU and a gap in loss below half a percent get no colour, because they say nothing about the recipe.
    out += compared_cell(speed_word(comparison), count_or_dash(s.tokens_per_s_per_process), row.faster_pct, 1, 1, on_gpu(comparison) ? 1 : INFINITY);
    out += cell("% decrease", number(row.decrease_pct, 1)) + (equal ? speedup_cell(row.equal_loss) : "");
    out += compared_cell("loss", number(s.mean_loss, 4), row.mean_loss_pct, 2, -1, 0.5);
    out += cell("TFLOPS, MFU", fmt::format("{}<small>{}</small>", std::isfinite(s.tflops_per_process) ? telemetry::format_significant(s.tflops_per_process, 3) : "–",
                                           std::isfinite(s.mfu) ? fmt::format("{:.1f}%", 100 * s.mfu) : "&nbsp;"));
    out += cell("peak memory", gib_or_dash(s.memory_peak_gib)) + cell("exposed communication", share_or_dash(s.exposed_pct));
    out += (bubbles ? cell("pipeline bubble", share_or_dash(s.bubble_pct)) : "") + "</tr>";
  }
  return out + "</tbody></table>";
}

}  // namespace

std::string render_scaling(const Comparison& comparison) {
  std::vector<std::vector<std::string>> lines{
      {ranks_word(comparison), "recipe", std::string(telemetry::rate_unit(worker_of(comparison))), "decrease", "faster"}};
  const bool bubbles = has_bubbles(comparison), equal = has_equal_losses(comparison);
  if (equal) lines[0].insert(lines[0].end(), {"equal loss", "noise"});
  lines[0].insert(lines[0].end(), {"loss", "higher", "TFLOPS", "MFU", "memory", "exposed"});
  if (bubbles) lines[0].push_back("bubble");
  for (const std::size_t i : by_ranks(comparison)) {
    const Row& row = comparison.rows[i];
    const Summary& s = row.summary;
    lines.push_back({telemetry::format_count(s.processes), s.name, text_count(s.tokens_per_s_per_process),
                     unsigned_percent(row.decrease_pct), text_percent(row.faster_pct, 1)});
    if (equal) lines.back().insert(lines.back().end(), {text_speedup(row.equal_loss), text_noise(row.equal_loss)});
    lines.back().insert(
        lines.back().end(),
        {text_number(s.mean_loss, 4), text_percent(row.mean_loss_pct, 2),
         std::isfinite(s.tflops_per_process) ? telemetry::format_significant(s.tflops_per_process, 3) : "-",
         unsigned_percent(100 * s.mfu), std::isfinite(s.memory_peak_gib) ? telemetry::format_gib(s.memory_peak_gib) : "-",
         unsigned_percent(s.exposed_pct)});
    if (bubbles) lines.back().push_back(unsigned_percent(s.bubble_pct));
  }
  return text_table(lines, 2) + what_is_compared(comparison) + "\n";
}

std::string scaling_lead(const Comparison& comparison) {
  std::string out;
  for (const Line& line : lines_of(comparison, {})) {
    const Row& last = *line.rows.back();
    const std::string name = escape(line.name), most = ranks_text(comparison, last.summary.processes);
    if (std::isfinite(last.decrease_pct)) {
      put(out, "<strong>From {} to {}, {} {} {:.1f}%</strong> of its {}", line.rows.front()->summary.processes, most, name,
          last.decrease_pct < 0 ? "gains" : "loses", std::abs(last.decrease_pct), speed_word(comparison));
    } else {
      put(out, "<strong>{} on {}</strong>", name, most);
    }
    if (std::isfinite(last.faster_pct) && std::isfinite(last.mean_loss_pct)) {
      put(out, "; there it is {:.0f}% {} than {} and its loss {}% {}", std::abs(last.faster_pct),
          last.faster_pct < 0 ? "slower" : "faster", escape(comparison.baseline),
          telemetry::format_fixed(std::abs(last.mean_loss_pct), 2), last.mean_loss_pct < 0 ? "lower" : "higher");
    }
    out += ". ";
  }
  if (!on_gpu(comparison))
    out += "On a CPU, FP8 is emulated and ranks share the cores: what this shows is the loss, not the speed of GPUs.";
  return out;
}

std::string scaling_section(const Comparison& comparison, std::span<const std::string> colours) {
  if (!comparison.scales) return "";
  const std::vector<Line> lines = lines_of(comparison, colours);
  std::string legend = "<ul class=\"legend\">";
  for (const Line& line : lines) put(legend, "<li><span class=\"swatch {}\"></span>{}</li>", line.colour, escape(line.name));
  legend += "</ul>";
  const std::string speed = chart_over_ranks(comparison, lines, &Summary::tokens_per_s_per_process, Range::from_zero,
                                             {.description = "throughput over the number of ranks",
                                              .series = {},
                                              .y_label = std::string(speed_word(comparison)),
                                              .y_low = 0,
                                              .y_high = 0,
                                              .y_text = [](double y) { return telemetry::format_count(y); }});
  const std::string loss = chart_over_ranks(comparison, lines, &Summary::mean_loss, Range::of_values,
                                            {.description = "loss over the number of ranks",
                                             .series = {},
                                             .y_label = "loss, mean of the last tenth",
                                             .y_low = 0,
                                             .y_high = 0,
                                             .y_text = [](double y) { return number(y, 4); }});
  return fmt::format(
      "<section><h2>On more {}</h2><p class=\"hint\">{}</p>{}</section><section>{}<div class=\"pair\"><figure>{}</figure>"
      "<figure>{}</figure></div></section>",
      ranks_word(comparison), escape(what_is_compared(comparison)), table(comparison, colours), legend, speed, loss);
}

}  // namespace octet::report
