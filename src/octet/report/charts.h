// Charts as SVG elements. Colours are CSS classes ("c0", "c1", ...) of style.h, so that one picture serves light and dark. Across, a
// chart is measured in per cent of its place, down in pixels: it fills any width, and its letters keep their size.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "octet/report/svg.h"

namespace octet::report {

struct Series {
  std::string name;
  std::string colour;          // CSS class
  std::string style = "";      // further CSS classes: "dashed", "thick"
  std::vector<Point> raw;      // faint; may be empty
  std::vector<Point> line;
  std::vector<Point> marks{};  // hollow dots (held-out loss)
};

struct LineChart {
  std::string description;     // for readers that do not see
  std::vector<Series> series;  // the first is drawn lowest
  std::string x_label, y_label;
  ScaleKind x_kind = ScaleKind::linear, y_kind = ScaleKind::linear;
  double y_low, y_high;
  double x_high = 0;           // the axis reaches at least this far
  std::vector<double> x_ticks{};  // empty: round numbers
  double band = 0;             // shades [-band, band]
  bool zero_line = false;
  std::function<std::string(double)> x_text, y_text;  // of a value in the tip
  int width = 1080, height = 360;  // the width that it is drawn for; it fits others
};
// For a page.
std::string draw(const LineChart& chart);
// For a picture, `chart.width` wide, the ticks' texts included; at (left, top) of the SVG that it stands in.
std::string draw_at(const LineChart& chart, double left, double top);

struct Bar {
  std::string name, colour;
  double value;
  std::string text;            // at the bar's end
  std::string note = "";       // after it, fainter
};
struct BarChart {
  std::string description;
  std::vector<Bar> bars;
};
std::string draw(const BarChart& chart);

// Gaps to the baseline on one small axis from -limit to limit percent: a dot for the mean loss, a ring for held-out.
struct GapPlot {
  std::string colour;
  double dot, ring, band, limit;
};
std::string draw(const GapPlot& plot);

}  // namespace octet::report
