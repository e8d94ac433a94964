#include "octet/report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "octet/report/page.h"

namespace octet::report {
namespace {
constexpr int kTipBins = 90;
constexpr double kPerCent = 100;
constexpr double kLeft = 52, kRight = 16, kAbove = 30, kUnder = 48;  // margins for tick texts and labels

std::string begin_svg(const std::string& description, int height, const char* css_class) {
  return fmt::format("<svg class=\"{}\" height=\"{}\" role=\"img\" aria-label=\"{}\">", css_class, height, escape(description));
}

// Maps a value to its place: x to per cent of the plot's width, y to pixels from the top.
struct Frame {
  double top, bottom;
  Scale x, y;
};

Frame frame_of(const LineChart& chart) {
  double x_low = INFINITY, x_high = -INFINITY;
  for (const Series& series : chart.series) {
    for (const Point& point : series.line) {
      if (!std::isfinite(point.x)) continue;
      x_low = std::min(x_low, point.x);
      x_high = std::max(x_high, point.x);
    }
  }
  x_high = std::max(x_high, chart.x_high);
  if (chart.x_kind == ScaleKind::linear && x_low < 0.05 * x_high) x_low = std::min(0.0, x_low);
  const double bottom = static_cast<double>(chart.height) - kUnder;
  return {kAbove, bottom, Scale(chart.x_kind, x_low, x_high, 0, kPerCent),
          Scale(chart.y_kind, chart.y_low, chart.y_high, bottom, kAbove)};
}

void draw_axes(std::string& out, const LineChart& chart, const Frame& frame) {
  const std::vector<double> y_ticks = frame.y.ticks(chart.height > 300 ? 6 : 5);
  for (const double tick : y_ticks) {
    const double y = frame.y(tick);
    put(out, "<line class=\"{0}\" x1=\"0\" x2=\"100%\" y1=\"{1:.1f}\" y2=\"{1:.1f}\"/>",
        chart.zero_line && tick == 0 ? "zero" : "grid", y);
    put(out, "<text class=\"tick\" text-anchor=\"end\" x=\"-10\" y=\"{:.1f}\">{}</text>", y + 4, tick_label(tick, y_ticks));
  }
  std::vector<double> x_ticks = chart.x_ticks;
  if (x_ticks.empty()) {
    x_ticks = frame.x.ticks(chart.width / 110);
    std::erase_if(x_ticks, [](double step) { return std::abs(step - std::round(step)) > 1e-6; });  // there is no step 2.5
  }
  for (std::size_t i = 0; i < x_ticks.size(); ++i) {
    const double x = frame.x(x_ticks[i]);
    // With more than four ticks, every second text gets a class that narrow pages hide.
    const char* more = i % 2 == 1 && x_ticks.size() > 4 ? " odd" : "";
    put(out, "<text class=\"tick{}\" text-anchor=\"middle\" x=\"{:.2f}%\" y=\"{:.1f}\">{}</text>", more, x, frame.bottom + 22,
        tick_label(x_ticks[i], x_ticks));
    put(out, "<line class=\"notch\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>", x, frame.bottom,
        frame.bottom + 5);
  }
  put(out, "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>", frame.bottom);
  put(out, "<text class=\"label\" x=\"{:.0f}\" y=\"14\">{}</text>", -kLeft, escape(chart.y_label));
  put(out, "<text class=\"label\" text-anchor=\"end\" x=\"100%\" y=\"{:.1f}\">{}</text>", frame.bottom + 42,
      escape(chart.x_label));
}

// Draws invisible columns over the plot. The column under the pointer shows a hairline and lists the value of every series there.
void draw_tips(std::string& out, const LineChart& chart, const Frame& frame) {
  constexpr double kWidth = kPerCent / kTipBins;
  std::vector<std::string> lines(kTipBins);
  std::vector<double> at(kTipBins, std::nan(""));
  for (const Series& series : chart.series) {
    std::vector<bool> taken(kTipBins, false);
    for (const Point& point : series.line) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      const auto bin = static_cast<std::size_t>(std::clamp(frame.x(point.x) / kWidth, 0.0, kTipBins - 1.0));
      if (taken[bin]) continue;
      taken[bin] = true;
      if (std::isnan(at[bin])) at[bin] = point.x;
      lines[bin] += "\n" + series.name + "  " + chart.y_text(point.y);
    }
  }
  for (int bin = 0; bin < kTipBins; ++bin) {
    const auto i = static_cast<std::size_t>(bin);
    if (std::isnan(at[i])) continue;
    put(out, "<g class=\"tip\"><rect x=\"{:.2f}%\" y=\"{:.1f}\" width=\"{:.2f}%\" height=\"{:.1f}\"/>", bin * kWidth, frame.top,
        kWidth, frame.bottom - frame.top);
    put(out, "<line x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>", frame.x(at[i]), frame.top, frame.bottom);
    put(out, "<title>{}</title></g>", escape(chart.x_text(at[i]) + lines[i]));
  }
}

// Draws everything but the tips. The left and right edges of the surrounding element are the plot's edges.
std::string draw_plot(const LineChart& chart, const Frame& frame) {
  std::string out;
  const auto shown = [&](const Point& point) { return frame.x.shows(point.x) && frame.y.shows(point.y); };
  const auto is_empty = [&](const Series& series) {
    return std::none_of(series.line.begin(), series.line.end(), shown) &&
           std::none_of(series.raw.begin(), series.raw.end(), shown) &&
           std::none_of(series.marks.begin(), series.marks.end(), shown);
  };
  if (std::all_of(chart.series.begin(), chart.series.end(), is_empty)) {
    put(out, "<text class=\"label\" text-anchor=\"middle\" x=\"50%\" y=\"{:.1f}\">{}</text>", (frame.top + frame.bottom) / 2,
        chart.nothing);
    return out;
  }
  if (chart.band > 0) {
    const double top = std::max(frame.top, frame.y(chart.band)), bottom = std::min(frame.bottom, frame.y(-chart.band));
    put(out, "<rect class=\"band\" x=\"0\" y=\"{:.1f}\" width=\"100%\" height=\"{:.1f}\"/>", top, std::max(0.0, bottom - top));
  }
  draw_axes(out, chart, frame);
  // SVG paths take no percentages. The curves are therefore drawn on a plane of fixed width, which is stretched to the plot's
  // width and clipped at its edges.
  const double plane = chart.width - kLeft - kRight;
  put(out,
      "<svg x=\"0\" y=\"{0:.1f}\" width=\"100%\" height=\"{1:.1f}\" viewBox=\"0 {0:.1f} {2:.1f} {1:.1f}\" "
      "preserveAspectRatio=\"none\">",
      frame.top - 2, frame.bottom - frame.top + 4, plane);
  const Scale across(chart.x_kind, frame.x.low(), frame.x.high(), 0, plane);
  for (const Series& series : chart.series) {
    if (!series.raw.empty()) put(out, "<path class=\"raw {}\" d=\"{}\"/>", series.colour, path_data(series.raw, across, frame.y));
  }
  for (const Series& series : chart.series) {
    put(out, "<path class=\"line {} {}\" d=\"{}\"/>", series.colour, series.style, path_data(series.line, across, frame.y));
  }
  out += "</svg>";
  for (const Series& series : chart.series) {
    // A path of one point draws nothing.
    if (std::count_if(series.line.begin(), series.line.end(), shown) == 1) {
      const Point point = *std::find_if(series.line.begin(), series.line.end(), shown);
      put(out, "<circle class=\"dot {}\" cx=\"{:.2f}%\" cy=\"{:.1f}\" r=\"3\"/>", series.colour, frame.x(point.x),
          frame.y(point.y));
    }
    for (const Point& point : series.marks) {
      if (!frame.x.shows(point.x) || !frame.y.shows(point.y) || !(point.y >= frame.y.low() && point.y <= frame.y.high()))
        continue;
      put(out, "<circle class=\"mark {}\" cx=\"{:.2f}%\" cy=\"{:.1f}\" r=\"3.4\"/>", series.colour, frame.x(point.x),
          frame.y(point.y));
    }
  }
  return out;
}
}  // namespace

std::string draw(const LineChart& chart) {
  const Frame frame = frame_of(chart);
  std::string out = "<div class=\"plot\">" + begin_svg(chart.description, chart.height, "chart") + draw_plot(chart, frame);
  draw_tips(out, chart, frame);
  return out + "</svg></div>";
}

std::string draw_at(const LineChart& chart, double left, double top) {
  return fmt::format("<svg x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" overflow=\"visible\">{}</svg>", left + kLeft,
                     top, chart.width - kLeft - kRight, chart.height, draw_plot(chart, frame_of(chart)));
}

std::string draw(const BarChart& chart) {
  constexpr double kRow = 38, kFirst = 8;
  double largest = 0;
  for (const Bar& bar : chart.bars) {
    if (std::isfinite(bar.value)) largest = std::max(largest, bar.value);
  }
  std::string out =
      begin_svg(chart.description, static_cast<int>(kFirst + kRow * static_cast<double>(chart.bars.size()) + 4), "chart");
  double top = kFirst;
  for (const Bar& bar : chart.bars) {
    const double length = largest > 0 && std::isfinite(bar.value) ? std::max(0.5, bar.value / largest * kPerCent) : 0;
    put(out, "<text class=\"name\" x=\"0\" y=\"{:.1f}\">{}</text>", top + 11, escape(bar.name));
    put(out, "<text class=\"value\" text-anchor=\"end\" x=\"100%\" y=\"{:.1f}\">{}", top + 11, escape(bar.text));
    if (!bar.note.empty()) put(out, "<tspan class=\"note\" dx=\"10\">{}</tspan>", escape(bar.note));
    out += "</text>";
    put(out, "<rect class=\"track\" x=\"0\" y=\"{:.1f}\" width=\"100%\" height=\"9\" rx=\"2\"/>", top + 18);
    put(out, "<rect class=\"bar {}\" x=\"0\" y=\"{:.1f}\" width=\"{:.2f}%\" height=\"9\" rx=\"2\"><title>{} {}</title></rect>",
        bar.colour, top + 18, length, escape(bar.name), escape(bar.text));
    top += kRow;
  }
  return out + "</svg>";
}

std::string draw(const GapPlot& plot) {
  constexpr int kWidth = 150, kHeight = 22;
  const Scale x(ScaleKind::linear, -plot.limit, plot.limit, 6, kWidth - 6);
  std::string out =
      fmt::format("<svg class=\"gap\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"gap to the baseline\">", kWidth, kHeight);
  if (plot.band > 0) {
    const double from = std::max(6.0, x(-plot.band)), to = std::min(kWidth - 6.0, x(plot.band));
    put(out, "<rect class=\"band\" x=\"{:.1f}\" y=\"3\" width=\"{:.1f}\" height=\"16\" rx=\"1\"/>", from, to - from);
  }
  put(out,
      "<line class=\"grid\" x1=\"6\" x2=\"{0}\" y1=\"11\" y2=\"11\"/><line class=\"zero\" x1=\"{1:.1f}\" x2=\"{1:.1f}\" y1=\"3\" "
      "y2=\"19\"/>",
      kWidth - 6, x(0));
  const auto place = [&](double value) { return std::clamp(x(value), 6.0, kWidth - 6.0); };
  if (std::isfinite(plot.ring))
    put(out, "<circle class=\"mark {}\" cx=\"{:.1f}\" cy=\"11\" r=\"4.2\"/>", plot.colour, place(plot.ring));
  if (std::isfinite(plot.dot))
    put(out, "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"11\" r=\"4.2\"/>", plot.colour, place(plot.dot));
  return out + "</svg>";
}

}  // namespace octet::report
