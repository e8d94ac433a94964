// Charts as SVG elements. Colours are CSS classes ("c0", "c1", ...) of style.h, so that one picture serves light and dark.
// Horizontal positions are percentages of the chart's width and vertical positions are pixels. A chart therefore fills any width,
// and its text keeps its size.
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
  std::vector<Point> marks{};  // drawn as hollow dots (held-out loss)
};

struct LineChart {
  std::string description;     // text for screen readers
  std::vector<Series> series;  // drawn in this order; later ones cover earlier ones
  std::string x_label, y_label;
  ScaleKind x_kind = ScaleKind::linear, y_kind = ScaleKind::linear;
  double y_low, y_high;
  double x_high = 0;           // the axis reaches at least this far
  std::vector<double> x_ticks{};  // empty: round numbers
  double band = 0;             // shades [-band, band]
  bool zero_line = false;
  std::function<std::string(double)> x_text, y_text;  // formats a value in the tooltip
  int width = 1080, height = 360;  // the intended width; the chart stretches to others
  const char* nothing = "no finite values";  // written in place of the axes if no series has a value to show
};
// Draws a chart for report.html.
std::string draw(const LineChart& chart);
// Draws a chart inside another SVG with its upper left corner at (left, top). It is `chart.width` wide, tick labels included.
std::string draw_at(const LineChart& chart, double left, double top);

struct Bar {
  std::string name, colour;
  double value;
  std::string text;            // written at the end of the bar
  std::string note = "";       // written after `text`, fainter
};
struct BarChart {
  std::string description;
  std::vector<Bar> bars;
};
std::string draw(const BarChart& chart);

// A run's loss gaps to the baseline on a small axis from -limit to limit per cent: a dot for the mean training loss, a ring for the
// held-out loss.
struct GapPlot {
  std::string colour;
  double dot, ring, band, limit;
};
std::string draw(const GapPlot& plot);

}  // namespace octet::report
