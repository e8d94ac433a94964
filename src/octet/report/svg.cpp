#include "octet/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/telemetry/format.h"

namespace octet::report {
namespace {
// The length of the UTF-8 sequence at the start of `text`, or 0 if it is invalid (RFC 3629).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) >= 0xA0;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) >= 0x90;
    return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

std::vector<double> log_ticks(double low, double high, int count) {
  static const std::vector<std::vector<double>> kMantissas = {{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}, {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  std::vector<double> best;
  const auto distance = [&](const std::vector<double>& ticks) { return std::abs(static_cast<double>(ticks.size()) - count); };
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int stride = std::max(1, (last - first) / std::max(1, count));
  for (const auto& mantissas : kMantissas) {
    std::vector<double> ticks;
    for (int exponent = first; exponent <= last; exponent += stride) {
      for (const double mantissa : mantissas) {
        const double tick = mantissa * std::pow(10.0, exponent);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
      if (stride > 1 && mantissas.size() > 1) break;
    }
    if (best.empty() || distance(ticks) < distance(best)) best = ticks;
  }
  return best;
}
}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (length > 1) {
      out.append(text.substr(0, length));
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
      out += c;
    } else if (c == '\n' || c == '\t') {
      out += c;
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

Scale::Scale(ScaleKind kind, double low, double high, double from, double to)
    : kind_(kind), low_(low), high_(high), from_(from), to_(to) {
  const double tiny = kind == ScaleKind::logarithmic ? 1e-30 : -1e30;
  if (!std::isfinite(low_) || !std::isfinite(high_) || high_ < low_ || high_ <= tiny) {
    low_ = kind == ScaleKind::logarithmic ? 1 : 0;
    high_ = kind == ScaleKind::logarithmic ? 10 : 1;
  }
  low_ = std::clamp(low_, tiny, 1e30);
  high_ = std::clamp(high_, tiny, 1e30);
  if (high_ - low_ <= 1e-9 * std::abs(high_)) {
    const double margin = low_ == 0 ? 1 : 0.05 * std::abs(low_);
    low_ -= margin;
    high_ += margin;
  }
}

bool Scale::shows(double value) const { return std::isfinite(value) && (kind_ == ScaleKind::linear || value > 0); }

double Scale::operator()(double value) const {
  const double share = kind_ == ScaleKind::linear ? (value - low_) / (high_ - low_) : std::log(value / low_) / std::log(high_ / low_);
  // Clamps values far outside the panel, because SVG renderers lose precision there.
  return from_ + std::clamp(share, -4.0, 5.0) * (to_ - from_);
}

std::vector<double> Scale::ticks(int count) const {
  const bool narrow = kind_ == ScaleKind::linear || high_ / low_ < 2;
  return narrow ? nice_ticks(low_, high_, count) : log_ticks(low_, high_, count);
}

std::vector<double> nice_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  if (!std::isfinite(low) || !std::isfinite(high) || !(high > low) || count < 1) return ticks;
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double mantissa : {5.0, 2.5, 2.0, 1.0}) {
    if (mantissa * power >= raw * (1 - 1e-9)) step = mantissa * power;
  }
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= 2 * count + 2; ++i) {
    const double tick = (first + i) * step;
    if (tick > high + 1e-9 * step) break;
    ticks.push_back(tick == 0 ? 0 : tick);
  }
  return ticks;
}

std::string tick_label(double value, std::span<const double> ticks) {
  double distance = std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    if (i > 0) distance = std::min(distance, std::abs(ticks[i] - ticks[i - 1]));
    largest = std::max(largest, std::abs(ticks[i]));
  }
  if (!std::isfinite(distance)) distance = std::abs(value);
  if (value == 0) return "0";
  const auto decimals = [](double of) {
    for (int digits = 0; digits < 6; ++digits) {
      const double shifted = of * std::pow(10.0, digits);
      if (std::abs(shifted - std::round(shifted)) < 1e-6 * shifted) return digits;
    }
    return 6;
  };
  if (largest >= 1e13) return fmt::format("{:.3g}", value);
  if (largest >= 1e4) {
    const double unit = largest >= 1e9 ? 1e9 : largest >= 1e6 ? 1e6 : 1e3;
    const char* name = largest >= 1e9 ? "B" : largest >= 1e6 ? "M" : "K";
    return fmt::format("{:.{}f}{}", value / unit, decimals(distance / unit), name);
  }
  if (std::abs(value) < 1e-4) return fmt::format("{:.2g}", value);
  // Ticks of a logarithmic axis differ in magnitude, so each gets the decimals that it needs.
  return fmt::format("{:.{}f}", value, std::max(decimals(std::abs(value)), std::min(decimals(distance), decimals(std::abs(value)) + 1)));
}

std::string path_data(std::span<const Point> points, const Scale& x, const Scale& y) {
  std::string path;
  bool drawing = false;
  for (const Point& point : points) {
    if (!x.shows(point.x) || !y.shows(point.y)) {
      drawing = false;
      continue;
    }
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", drawing ? 'L' : 'M', x(point.x), y(point.y));
    drawing = true;
  }
  return path;
}

std::vector<Point> thin(std::span<const Point> points, std::size_t limit) {
  if (points.size() <= limit || limit == 0) return {points.begin(), points.end()};
  std::vector<Point> thinned;
  for (std::size_t bin = 0; bin < limit; ++bin) {
    const std::size_t begin = bin * points.size() / limit;
    const std::size_t end = (bin + 1) * points.size() / limit;
    Point sum{0, 0};
    double finite = 0;
    for (const Point& point : points.subspan(begin, end - begin)) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      sum.x += point.x;
      sum.y += point.y;
      ++finite;
    }
    thinned.push_back(finite > 0 ? Point{sum.x / finite, sum.y / finite, finite} : Point{points[begin].x, std::nan("")});
  }
  return thinned;
}

std::vector<Point> extremes(std::span<const Point> points, std::size_t limit) {
  const std::size_t bins = limit / 2;
  if (points.size() <= limit || bins == 0) return {points.begin(), points.end()};
  std::vector<Point> result;
  for (std::size_t bin = 0; bin < bins; ++bin) {
    const std::size_t begin = bin * points.size() / bins, end = (bin + 1) * points.size() / bins;
    const Point *low = nullptr, *high = nullptr;
    for (const Point& point : points.subspan(begin, end - begin)) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      if (!low || point.y < low->y) low = &point;
      if (!high || point.y > high->y) high = &point;
    }
    if (!low) {
      result.push_back({points[begin].x, std::nan("")});
      continue;
    }
    result.push_back(*std::min(low, high));
    if (low != high) result.push_back(*std::max(low, high));
  }
  return result;
}

std::vector<Point> pick(std::span<const Point> points, std::size_t limit) {
  if (points.size() <= limit || limit < 2) return {points.begin(), points.end()};
  std::vector<Point> picked;
  for (std::size_t i = 0; i < limit; ++i) picked.push_back(points[i * (points.size() - 1) / (limit - 1)]);
  return picked;
}

std::vector<Point> smooth(std::span<const Point> points, double width) {
  std::vector<Point> smoothed(points.begin(), points.end());
  if (!(width > 0)) return smoothed;
  const auto reach = static_cast<std::ptrdiff_t>(std::ceil(2.5 * width));
  std::vector<double> weights;
  for (std::ptrdiff_t i = 0; i <= reach; ++i) weights.push_back(std::exp(-0.5 * static_cast<double>(i * i) / (width * width)));
  const auto count = static_cast<std::ptrdiff_t>(points.size());
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    if (!std::isfinite(points[static_cast<std::size_t>(i)].y)) continue;
    // At the start the window shrinks on both sides, so that it stays centred. Otherwise the steep fall of a loss would pull the
    // curve down. At the end the window shrinks on its right only.
    const std::ptrdiff_t before = std::min(reach, i);
    const std::ptrdiff_t after = std::min(before, count - 1 - i);
    double sum = 0, total = 0;
    for (std::ptrdiff_t k = -before; k <= after; ++k) {
      const double y = points[static_cast<std::size_t>(i + k)].y;
      if (!std::isfinite(y)) continue;
      const double weight = weights[static_cast<std::size_t>(std::abs(k))];
      sum += weight * y;
      total += weight;
    }
    smoothed[static_cast<std::size_t>(i)].y = sum / total;
  }
  return smoothed;
}

double quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::llround(position))];
}

}  // namespace octet::report
