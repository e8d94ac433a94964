#include "octet/report/picture.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "octet/report/curves.h"
#include "octet/report/page.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

constexpr const char* kPictureFirstLine = "<!-- drawn by octet: runs -->\n";
constexpr int kPictureWidth = 900, kPictureHeight = 540, kMargin = 22, kBetween = 30;
constexpr int kChartsTop = 74, kLossHeight = 262, kGapHeight = 188, kLeastCloseUp = 150;
constexpr std::size_t kPoints = 300;  // in a curve
constexpr double kLetter = 7.8;       // mean width of a bold letter of the table in the widest usual font, DejaVu Sans
constexpr std::size_t kLongestName = 26;

// Describes the first run in words: parameters, steps and device. Runs in one picture usually share these facts.
std::string facts_of(const std::vector<Shown>& shown) {
  const telemetry::RunInfo& info = shown.front().run->info;
  std::vector<std::string> facts;
  if (info.parameters > 0) facts.push_back(telemetry::format_compact(static_cast<double>(info.parameters)) + " parameters");
  if (const std::int64_t tokens = tokens_of_each_step(*shown.front().run); tokens > 0) {
    facts.push_back(fmt::format("{} of {}", telemetry::format_count(static_cast<std::int64_t>(last_step(shown)), "step"),
                                telemetry::format_count(tokens, "token")));
  }
  if (!info.device_name.empty())
    facts.push_back(info.processes > 1 ? fmt::format("{} x {}", info.processes, info.device_name) : info.device_name);
  return joined(facts);
}

std::string short_name(const std::string& name) {
  if (name.size() <= kLongestName) return name;
  return name.substr(0, kLongestName / 2) + "…" + name.substr(name.size() - kLongestName / 2 + 1);
}

// Many rows stand closer together, so that the close-up below them keeps its place.
double row_height(const std::vector<Shown>& shown) { return std::clamp(180 / static_cast<double>(shown.size()), 18.0, 29.0); }

// The columns are right-aligned and laid out from the right edge.
struct Column {
  const char* head[2];
  double width;
};
const std::vector<Column>& columns_of(bool compared, bool gpu) {
  static const Column kSpeed{{"tokens/s", "per GPU"}, 74}, kCpuSpeed{{"tokens/s", "per process"}, 78},
      kFaster{{"%", "faster"}, 66}, kLoss{{"last", "tenth"}, 60}, kHigher{{"%", "higher"}, 66};
  static const std::vector<Column> kAlone{kSpeed, kLoss}, kCpuAlone{kCpuSpeed, kLoss}, kAll{kSpeed, kFaster, kLoss, kHigher},
      kCpuAll{kCpuSpeed, kFaster, kLoss, kHigher};
  return compared ? (gpu ? kAll : kCpuAll) : (gpu ? kAlone : kCpuAlone);
}

double table_width(const std::vector<Shown>& shown, const std::vector<Column>& columns) {
  std::size_t longest = 6;
  for (const Shown& s : shown) longest = std::max(longest, short_name(s.row->label).size());
  double width = 26 + kLetter * static_cast<double>(longest);
  for (const Column& column : columns) width += column.width;
  return width;
}

void draw_table(std::string& out, const std::vector<Shown>& shown, const std::vector<Column>& columns, double left, double right,
                bool names_are_recipes, Theme theme) {
  const std::string rule = colour_of(theme, "rule"), soft = colour_of(theme, "soft");
  const auto row_text = [&](double x, double y, const std::string& text, const std::string& colour) {
    put(out, "<text class=\"cell\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>", x, y,
        colour.empty() ? "" : fmt::format(" style=\"fill: {}\"", colour), escape(text));
  };
  const double pitch = row_height(shown);
  double y = kChartsTop + 28;
  put(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", left, y, names_are_recipes ? "recipe" : "run");
  double x = right;
  for (auto column = columns.rbegin(); column != columns.rend(); ++column) {
    for (const int line : {0, 1})
      put(out, "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x, y - 15 + 15 * line,
          column->head[line]);
    x -= column->width;
  }
  for (const Shown& s : shown) {
    const Row& row = *s.row;
    put(out, "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>", left, right, y + (pitch - 7) / 2,
        y + (pitch - 7) / 2, rule);
    y += pitch;
    put(out,
        "<line class=\"line {0}{1}\" x1=\"{2:.1f}\" x2=\"{3:.1f}\" y1=\"{4:.1f}\" y2=\"{4:.1f}\" style=\"stroke-width: 2.5\"/>",
        s.colour, s.dashed ? " dashed" : "", left, left + 16, y - 4);
    put(out, "<text class=\"cell\" x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>", left + 24, y,
        row.is_repeat ? fmt::format(" style=\"fill: {}\"", soft) : " style=\"font-weight: 600\"", escape(short_name(row.label)));
    const bool gains = row.summary.device == "cuda" && row.faster_pct > 1;
    std::vector<std::pair<std::string, std::string>> cells{{count_or_dash(row.summary.tokens_per_s_per_process), ""}};
    if (columns.size() > 2)
      cells.emplace_back(row.is_repeat ? "" : percent(row.faster_pct, 1), gains ? colour_of(theme, "good") : soft);
    cells.emplace_back(number(row.summary.mean_loss, 4), "");
    if (columns.size() > 2) cells.emplace_back(percent(row.mean_loss_pct, 2), soft);
    x = right;
    for (std::size_t i = columns.size(); i-- > 0; x -= columns[i].width) row_text(x, y, cells[i].first, cells[i].second);
  }
}

// Breaks the words into lines of at most `width` pixels. Returns the y of the line after the last.
double draw_note(std::string& out, const std::string& note, double left, double y, double width) {
  constexpr double kNoteLetter = 5.6, kLine = 15;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) put(out, "<text class=\"fine\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", left, y, escape(line));
    line.clear();
    y += kLine;
  };
  for (std::size_t begin = 0; begin < note.size();) {
    const std::size_t end = std::min(note.find(' ', begin), note.size());
    const std::string word = note.substr(begin, end - begin);
    if (!line.empty() && kNoteLetter * static_cast<double>(line.size() + 1 + word.size()) > width) end_line();
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  end_line();
  return y;
}

void slim(LineChart& chart) {
  for (Series& series : chart.series) {
    series.raw.clear();
    series.line = thin(series.line, kPoints);
  }
}

}  // namespace

bool is_picture_of_runs(std::string_view begin) { return begin.starts_with(kPictureFirstLine); }

std::string render_picture(std::string_view title, std::span<const Run> runs, const Comparison& comparison, Theme theme) {
  const std::vector<Shown> shown = shown_runs(runs, comparison);
  std::string out = kPictureFirstLine;
  put(out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "aria-label=\"{2}\" "
      "font-family=\"Inter, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\">",
      kPictureWidth, kPictureHeight, escape(title));
  put(out, "<style>{}svg .cell {{ font-size: 13px; font-variant-numeric: tabular-nums; }}</style>", chart_style(theme));
  put(out, "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"{}\" stroke=\"{}\"/>", kPictureWidth - 1,
      kPictureHeight - 1, colour_of(theme, "page"), colour_of(theme, "rule"));
  put(out, "<text x=\"{}\" y=\"36\" style=\"font-size: 18px; font-weight: 650\">{}</text>", kMargin, escape(title));
  if (shown.empty()) return out + "</svg>\n";
  put(out, "<text class=\"label\" x=\"{}\" y=\"57\">{}</text>", kMargin, escape(facts_of(shown)));

  const std::optional<LineChart> gap = gap_chart(shown, comparison);
  const bool gpu = worker_of(comparison) == telemetry::Worker::gpu;
  const bool compared =
      std::any_of(shown.begin(), shown.end(), [](const Shown& s) { return s.row->baseline && !s.row->is_baseline; });
  const std::vector<Column>& columns = columns_of(compared, gpu);
  const double right = kPictureWidth - kMargin, left = right - table_width(shown, columns);
  LineChart loss = loss_chart(shown);
  slim(loss);
  std::tie(loss.y_low, loss.y_high) = value_range(loss.series, loss.y_kind);
  loss.width = static_cast<int>(left) - kBetween - kMargin + 16;
  loss.height = gap ? kLossHeight : kLossHeight + kGapHeight;
  if (gap) loss.x_label = "";
  out += draw_at(loss, kMargin, kChartsTop);
  if (gap) {
    LineChart below = *gap;
    slim(below);
    below.width = loss.width;
    below.height = kGapHeight;
    out += draw_at(below, kMargin, kChartsTop + kLossHeight);
  }
  draw_table(out, shown, columns, left, right, !has_own_names(comparison), theme);
  const bool evaluated = std::any_of(loss.series.begin(), loss.series.end(), [](const Series& s) { return !s.marks.empty(); });
  std::string note = "Last tenth: the mean loss over the last tenth of the steps.";
  if (evaluated) note += " Rings: held-out loss.";
  if (gap && gap->band >= 0.005)
    note += fmt::format(" Shaded: how far {} is from itself when it is trained twice, {:.2f}\u00a0%.", comparison.baseline,
                        gap->band);
  for (const Row& row : comparison.rows) {
    if (!row.other_hardware.empty()) note += " " + hardware_sentence(comparison, row);
  }
  const double end =
      draw_note(out, note, left, kChartsTop + 54 + row_height(shown) * static_cast<double>(shown.size()), right - left);
  const double bottom = kChartsTop + kLossHeight + kGapHeight;
  std::optional<LineChart> close_up = loss_close_up(loss);
  if (close_up && bottom - end >= kLeastCloseUp) {
    close_up->width = static_cast<int>(right - left) + 16;
    close_up->height = static_cast<int>(std::min<double>(kGapHeight, bottom - end));
    out += draw_at(*close_up, left, bottom - close_up->height);
  }
  return out + "</svg>\n";
}

}  // namespace octet::report
