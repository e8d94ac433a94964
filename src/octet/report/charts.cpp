#include "octet/report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "octet/report/page.h"

namespace octet::report {
namespace {
constexpr int kTipBins = 90;

struct Frame {
  double left, right, top, bottom;
};

std::string begin_svg(const std::string& description, int width, int height, const char* css_class) {
  return fmt::format("<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", css_class, width, height, escape(description));
}

void draw_axes(std::string& out, const LineChart& chart, const Frame& frame, const Scale& x, const Scale& y) {
  const std::vector<double> y_ticks = y.ticks(chart.height > 300 ? 6 : 5);
  for (const double tick : y_ticks) {
    const char* css_class = chart.zero_line && tick == 0 ? "zero" : "grid";
    put(out, "<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", css_class, frame.left, frame.right, y(tick), y(tick));
    put(out, "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", frame.left - 10, y(tick) + 4,
        tick_label(tick, y_ticks));
  }
  const std::vector<double> x_ticks = chart.x_ticks.empty() ? x.ticks(chart.width / 110) : chart.x_ticks;
  for (const double tick : x_ticks) {
    put(out, "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x(tick), frame.bottom + 22,
        tick_label(tick, x_ticks));
    put(out, "<line class=\"notch\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>", x(tick), frame.bottom, frame.bottom + 5);
  }
  put(out, "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", frame.left, frame.right, frame.bottom);
  put(out, "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", 0.0, 14.0, escape(chart.y_label));
  put(out, "<text class=\"label\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", frame.right, frame.bottom + 42, escape(chart.x_label));
}

// Invisible columns over the plot: the one under the pointer shows a hairline and tells every series' value there.
void draw_tips(std::string& out, const LineChart& chart, const Frame& frame, const Scale& x) {
  const double bin_width = (frame.right - frame.left) / kTipBins;
  std::vector<std::string> lines(kTipBins);
  std::vector<double> at(kTipBins, std::nan(""));
  for (const Series& series : chart.series) {
    std::vector<bool> taken(kTipBins, false);
    for (const Point& point : series.line) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      const auto bin = static_cast<std::size_t>(std::clamp((x(point.x) - frame.left) / bin_width, 0.0, kTipBins - 1.0));
      if (taken[bin]) continue;
      taken[bin] = true;
      if (std::isnan(at[bin])) at[bin] = point.x;
      lines[bin] += "\n" + series.name + "  " + chart.y_text(point.y);
    }
  }
  for (int bin = 0; bin < kTipBins; ++bin) {
    const auto i = static_cast<std::size_t>(bin);
    if (std::isnan(at[i])) continue;
    put(out, "<g class=\"tip\"><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>", frame.left + bin * bin_width, frame.top,
        bin_width, frame.bottom - frame.top);
    put(out, "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>", x(at[i]), frame.top, frame.bottom);
    put(out, "<title>{}</title></g>", escape(chart.x_text(at[i]) + lines[i]));
  }
}
}  // namespace

std::string draw(const LineChart& chart) {
  const Frame frame{52, static_cast<double>(chart.width) - 16, 30, static_cast<double>(chart.height) - 48};
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
  const Scale x(chart.x_kind, x_low, x_high, frame.left, frame.right);
  const Scale y(chart.y_kind, chart.y_low, chart.y_high, frame.bottom, frame.top);

  std::string out = begin_svg(chart.description, chart.width, chart.height, "chart");
  if (chart.band > 0) {
    const double top = std::max(frame.top, y(chart.band));
    const double bottom = std::min(frame.bottom, y(-chart.band));
    put(out, "<rect class=\"band\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>", frame.left, top, frame.right - frame.left,
        std::max(0.0, bottom - top));
  }
  draw_axes(out, chart, frame, x, y);
  // An inner <svg> cuts what leaves the plot; a dot at its edge stays whole.
  put(out, "<svg x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" viewBox=\"{0:.1f} {1:.1f} {2:.1f} {3:.1f}\">", frame.left - 5,
      frame.top - 2, frame.right - frame.left + 13, frame.bottom - frame.top + 4);
  for (const Series& series : chart.series) {
    if (!series.raw.empty()) put(out, "<path class=\"raw {}\" d=\"{}\"/>", series.colour, path_data(series.raw, x, y));
  }
  for (const Series& series : chart.series) {
    put(out, "<path class=\"line {} {}\" d=\"{}\"/>", series.colour, series.style, path_data(series.line, x, y));
  }
  for (const Series& series : chart.series) {
    for (const Point& point : series.marks) {
      if (!x.shows(point.x) || !y.shows(point.y)) continue;
      put(out, "<circle class=\"mark {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.4\"/>", series.colour, x(point.x), y(point.y));
    }
  }
  out += "</svg>";
  draw_tips(out, chart, frame, x);
  return out + "</svg>";
}

std::string draw(const BarChart& chart) {
  constexpr double kRow = 38, kTop = 8;
  double largest = 0;
  for (const Bar& bar : chart.bars) {
    if (std::isfinite(bar.value)) largest = std::max(largest, bar.value);
  }
  const int height = static_cast<int>(kTop + kRow * static_cast<double>(chart.bars.size()) + 4);
  std::string out = begin_svg(chart.description, chart.width, height, "chart");
  const double room = chart.width - 4.0;
  double top = kTop;
  for (const Bar& bar : chart.bars) {
    const double length = largest > 0 && std::isfinite(bar.value) ? std::max(2.0, bar.value / largest * room) : 0;
    put(out, "<text class=\"name\" x=\"0\" y=\"{:.1f}\">{}</text>", top + 11, escape(bar.name));
    put(out, "<text class=\"value\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}", room, top + 11, escape(bar.text));
    if (!bar.note.empty()) put(out, "<tspan class=\"note\" dx=\"10\">{}</tspan>", escape(bar.note));
    out += "</text>";
    put(out, "<rect class=\"track\" x=\"0\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"9\" rx=\"2\"/>", top + 18, room);
    put(out, "<rect class=\"bar {}\" x=\"0\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"9\" rx=\"2\"><title>{} {}</title></rect>", bar.colour, top + 18,
        length, escape(bar.name), escape(bar.text));
    top += kRow;
  }
  return out + "</svg>";
}

std::string draw(const GapPlot& plot) {
  constexpr int kWidth = 150, kHeight = 22;
  const Scale x(ScaleKind::linear, -plot.limit, plot.limit, 6, kWidth - 6);
  std::string out = begin_svg("gap to the baseline", kWidth, kHeight, "gap");
  if (plot.band > 0) {
    const double from = std::max(6.0, x(-plot.band)), to = std::min(kWidth - 6.0, x(plot.band));
    put(out, "<rect class=\"band\" x=\"{:.1f}\" y=\"3\" width=\"{:.1f}\" height=\"16\" rx=\"1\"/>", from, to - from);
  }
  put(out, "<line class=\"grid\" x1=\"6\" x2=\"{0}\" y1=\"11\" y2=\"11\"/><line class=\"zero\" x1=\"{1:.1f}\" x2=\"{1:.1f}\" y1=\"3\" y2=\"19\"/>",
      kWidth - 6, x(0));
  const auto place = [&](double value) { return std::clamp(x(value), 6.0, kWidth - 6.0); };
  if (std::isfinite(plot.ring)) put(out, "<circle class=\"mark {}\" cx=\"{:.1f}\" cy=\"11\" r=\"4.2\"/>", plot.colour, place(plot.ring));
  if (std::isfinite(plot.dot)) put(out, "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"11\" r=\"4.2\"/>", plot.colour, place(plot.dot));
  return out + "</svg>";
}

}  // namespace octet::report
