// The small parts of a chart: escaped text, ticks, a scale from values to pixels, paths.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::report {

// For text and quoted attributes of HTML and SVG. Bytes that are not UTF-8 become U+FFFD; control characters are dropped.
std::string escape(std::string_view text);

struct Point {
  double x, y;
};

enum class ScaleKind { linear, logarithmic };

// Maps [low, high] to [from, to] pixels, linearly in the value or in its logarithm.
class Scale {
 public:
  // Any input gives a usable scale: an empty, reversed, non-finite or (logarithmic) non-positive range is widened.
  Scale(ScaleKind kind, double low, double high, double from, double to);
  double operator()(double value) const;
  bool shows(double value) const;  // finite and, on a logarithmic scale, positive
  double low() const { return low_; }
  double high() const { return high_; }
  // About `count` round values within the range.
  std::vector<double> ticks(int count) const;

 private:
  ScaleKind kind_;
  double low_, high_, from_, to_;
};

// Round values in [low, high] a step of 1, 2, 2.5 or 5 times a power of ten apart.
std::vector<double> nice_ticks(double low, double high, int count);
// As many decimals as the ticks' distance needs; "12K" and "3M" for large numbers.
std::string tick_label(double value, std::span<const double> ticks);

// "M1 2L3 4..." in pixels with one decimal; points that a scale does not show leave a gap.
std::string path_data(std::span<const Point> points, const Scale& x, const Scale& y);

// At most `limit` points: the means of equal ranges of consecutive points. Values not finite are left out.
std::vector<Point> thin(std::span<const Point> points, std::size_t limit);
// A Gaussian mean over the neighbours: a centred window, so that nothing lags. `width` is the deviation in points.
std::vector<Point> smooth(std::span<const Point> points, double width);
// The q-quantile of the finite values; NaN when there are none.
double quantile(std::vector<double> values, double q);

}  // namespace octet::report
