// Building blocks of charts: escaped text, ticks, scales from values to pixels, and paths.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::report {

// Escapes text for elements and quoted attributes of HTML and SVG. Invalid UTF-8 becomes U+FFFD; control characters are dropped.
std::string escape(std::string_view text);

struct Point {
  double x, y;
  double count = 1;  // number of points of which it is the mean (thin())
};

enum class ScaleKind { linear, logarithmic };

// Maps [low, high] to [from, to] pixels, linearly in the value or in its logarithm.
class Scale {
 public:
  // Every input gives a usable scale: a range that is empty, reversed, not finite, or not positive (logarithmic) is replaced by
  // one that can be shown.
  Scale(ScaleKind kind, double low, double high, double from, double to);
  double operator()(double value) const;
  bool shows(double value) const;  // whether the value is finite and, on a logarithmic scale, positive
  double low() const { return low_; }
  double high() const { return high_; }
  // Returns about `count` round values within the range.
  std::vector<double> ticks(int count) const;

 private:
  ScaleKind kind_;
  double low_, high_, from_, to_;
};

// Returns about `count` round values in [low, high], whose distance is 1, 2, 2.5 or 5 times a power of ten.
std::vector<double> nice_ticks(double low, double high, int count);
// Formats a tick with as many decimals as the distance of the ticks needs, and large numbers as "12K" or "3M".
std::string tick_label(double value, std::span<const double> ticks);

// Returns the data of an SVG path, "M1 2L3 4...", in pixels with one decimal. Points that a scale does not show leave a gap.
std::string path_data(std::span<const Point> points, const Scale& x, const Scale& y);

// Returns at most `limit` points: the means of consecutive groups of points of about equal size. Values that are not finite are
// left out.
std::vector<Point> thin(std::span<const Point> points, std::size_t limit);
// Returns at most `limit` points: the lowest and the highest of consecutive points, so that no spike is lost. Values that are not
// finite are left out.
std::vector<Point> extremes(std::span<const Point> points, std::size_t limit);
// Returns at most `limit` of the points, evenly spread from the first to the last.
std::vector<Point> pick(std::span<const Point> points, std::size_t limit);
// Returns the points with their y smoothed by a Gaussian whose standard deviation is `width` points. The window is centred,
// except near the end, where it reaches less far to the right.
std::vector<Point> smooth(std::span<const Point> points, double width);
// Returns the q-quantile of the finite values, or NaN if there are none.
double quantile(std::vector<double> values, double q);

}  // namespace octet::report
