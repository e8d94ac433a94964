#include "octet/report/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "octet/report/page.h"
#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {
using telemetry::HealthSample;
using telemetry::kUnknown;

constexpr int kShades = 9;  // CSS classes of style.h: h0 to h8 for quiet strips, t0 to t8 for strips whose shades mean trouble

double value_of(const HealthSample& sample, HealthMetric metric) {
  switch (metric) {
    case HealthMetric::amax: return sample.amax;
    case HealthMetric::scale: return sample.scale;
    case HealthMetric::saturated: return sample.saturated_pct;
    case HealthMetric::flushed: return sample.flushed_pct;
    case HealthMetric::sqnr: return sample.sqnr_db;
  }
  return kUnknown;
}

// Returns the sample that a reader must not miss, of two that share a cell.
double worse(HealthMetric metric, double a, double b) {
  if (!std::isfinite(a)) return b;
  if (!std::isfinite(b)) return a;
  return metric == HealthMetric::sqnr || metric == HealthMetric::scale ? std::min(a, b) : std::max(a, b);
}

struct Look {
  const char* title;
  // Lower bounds of the shades 1 to 8, from harmless to bad. If empty, each strip has a logarithmic range of its own.
  std::vector<double> bounds;
  const char* unit;
  const char* bounds_unit;
};
const Look& look(HealthMetric metric) {
  static const Look kAmax{"largest magnitude", {}, "", ""};
  static const Look kScale{"scale", {}, "", ""};
  static const Look kSaturated{"saturated", {1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 5}, "%", "%"};
  static const Look kFlushed{"flushed to zero", {1e-2, 0.1, 0.3, 1, 3, 10, 25, 50}, "%", "%"};
  static const Look kSqnr{"signal to noise", {1, 2, 3, 4, 6, 9, 12, 18}, " dB", " dB below"};  // below allowed_db()
  switch (metric) {
    case HealthMetric::amax: return kAmax;
    case HealthMetric::scale: return kScale;
    case HealthMetric::saturated: return kSaturated;
    case HealthMetric::flushed: return kFlushed;
    case HealthMetric::sqnr: return kSqnr;
  }
  return kAmax;
}

int shade(const Look& look, double value) {
  return static_cast<int>(std::count_if(look.bounds.begin(), look.bounds.end(), [&](double bound) { return value >= bound; }));
}

// The signal-to-noise ratio that rounding alone gives. Inputs and weights are E4M3 in every recipe. The format of the others is
// the one that these values are closest to.
double allowed_db(const std::string& operand, const std::vector<double>& values) {
  constexpr double kE4m3 = 31.5, kE5m2 = 25.5;
  if (operand == "x" || operand == "w") return kE4m3;
  return quantile(values, 0.5) < (kE4m3 + kE5m2) / 2 ? kE5m2 : kE4m3;
}

HealthRow parse_row(const std::string& name) {
  HealthRow row{name, -1, name};
  std::string_view rest = name;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (error == std::errc() && end == part.data() + part.size() && number >= 0 && !rest.empty()) {
      row.layer = number;
      row.label = rest;
      break;
    }
  }
  return row;
}

// Shortens each label to the fewest last parts that no other row of the same layer ends in.
void shorten_labels(std::vector<HealthRow>& rows) {
  const auto end_of = [](const std::string& label, int parts) {
    std::size_t dot = label.size();
    for (; parts > 0 && dot != label.npos && dot > 0; --parts) dot = label.rfind('.', dot - 1);
    return parts > 0 || dot == label.npos ? label : label.substr(dot + 1);
  };
  std::vector<std::string> labels(rows.size());
  std::vector<bool> settled(rows.size(), false);
  for (int parts = 1; std::find(settled.begin(), settled.end(), false) != settled.end(); ++parts) {
    std::map<std::pair<std::int64_t, std::string>, int> count;
    for (const HealthRow& row : rows) ++count[{row.layer, end_of(row.label, parts)}];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (settled[i]) continue;
      labels[i] = end_of(rows[i].label, parts);
      settled[i] = labels[i] == rows[i].label || (!labels[i].empty() && count[{rows[i].layer, labels[i]}] == 1);
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].label = std::move(labels[i]);
}

// Sorts by layer. The experts of a layer follow the first of them, by number: an expert that had no tokens at first is not the
// last.
void sort_rows(std::vector<HealthRow>& rows) {
  struct Key {
    std::int64_t layer;
    std::size_t kind;  // the index of the first row of the same experts
    std::int64_t expert;
    auto operator<=>(const Key&) const = default;
  };
  std::map<std::string, std::size_t> kinds;
  std::vector<std::pair<Key, HealthRow>> keyed;
  for (HealthRow& row : rows) {
    constexpr std::string_view kExperts = ".experts.";
    std::string kind = row.name;
    std::int64_t expert = 0;
    if (const std::size_t at = kind.find(kExperts); at != std::string::npos) {
      const std::size_t number = at + kExperts.size();
      const char* const end = std::from_chars(kind.data() + number, kind.data() + kind.size(), expert).ptr;
      kind.erase(number, static_cast<std::size_t>(end - kind.data()) - number);
    }
    const std::int64_t layer = row.layer < 0 ? std::numeric_limits<std::int64_t>::max() : row.layer;
    const std::size_t first = kinds.emplace(kind, keyed.size()).first->second;
    keyed.emplace_back(Key{layer, first, expert}, std::move(row));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::move(keyed[i].second);
}

std::string power_of_two(double value) {
  static constexpr std::array<const char*, 10> kDigits{"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = "2";
  for (const char c : std::to_string(std::lround(std::log2(value)))) text += c == '-' ? "⁻" : kDigits[static_cast<std::size_t>(c - '0')];
  return text;
}

std::string value_text(HealthMetric metric, double value) {
  return std::isfinite(value) ? telemetry::format_significant(value, 3) + look(metric).unit : "unknown";
}

// Vertical positions in pixels. Horizontally, each strip is drawn on a plane of fixed width that is stretched to the strip's
// share.
struct Geometry {
  double row_height;
  std::vector<double> row_top;
  double bottom;
};
constexpr double kPlane = 1000, kGutter = 116, kStripGap = 2, kFirstRow = 48, kLegend = 30;  // kStripGap in per cent

Geometry lay_out(const HealthSheet& sheet) {
  Geometry g;
  const auto rows = static_cast<double>(sheet.rows.size());
  g.row_height = rows <= 45 ? 13 : rows <= 80 ? 11 : std::max(3.0, std::floor(800 / rows));
  double top = kFirstRow;
  for (std::size_t row = 0; row < sheet.rows.size(); ++row) {
    if (row > 0 && sheet.rows[row].layer != sheet.rows[row - 1].layer) top += g.row_height >= 8 ? 5 : 1;
    g.row_top.push_back(top);
    top += g.row_height;
  }
  g.bottom = top;
  return g;
}

void draw_labels(std::string& out, const HealthSheet& sheet, const Geometry& g) {
  const bool names = g.row_height >= 11;
  const char* const small = g.row_height >= 13 ? "tick" : "fine";  // 12.5 and 11 pixels high
  double last_number = -100;
  for (std::size_t row = 0; row < sheet.rows.size(); ++row) {
    const HealthRow& r = sheet.rows[row];
    const double baseline = g.row_top[row] + 0.5 * g.row_height + 3.5;
    const bool first = row == 0 || r.layer != sheet.rows[row - 1].layer;
    if (first && r.layer >= 0 && baseline - last_number >= 11) {
      put(out, "<text class=\"layer\" x=\"0\" y=\"{:.1f}\">{}</text>", baseline, r.layer);
      last_number = baseline;
    }
    // The gutter has room for 15 characters. The strip's tip shows the whole name.
    std::string label = r.label;
    if (label.size() > 15 && label.ends_with(".fused")) label.resize(label.size() - 6);
    if (label.size() > 15) label = label.substr(0, 7) + "…" + label.substr(label.size() - 7);
    if (names)
      put(out, "<text class=\"{}\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", small, kGutter - 12, baseline,
          escape(label));
  }
}

// Draws one strip. `left` and `width` are in per cent. All cells of one shade share one path.
void draw_strip(std::string& out, const HealthSheet& sheet, const Geometry& g, HealthMetric metric, std::size_t operand, double left, double width) {
  const auto& values = sheet.values[static_cast<std::size_t>(metric)][operand];
  const std::size_t columns = sheet.columns;
  const Look& style = look(metric);
  double low = INFINITY, high = 0;
  for (const double value : values) {
    if (!std::isfinite(value) || value <= 0) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const double allowed = metric == HealthMetric::sqnr ? allowed_db(sheet.operands[operand], values) : 0;
  const auto shade_of = [&](double value) {
    if (!style.bounds.empty()) return shade(style, metric == HealthMetric::sqnr ? allowed - value : value);
    if (value <= 0 || !(high > low)) return value > 0 ? kShades / 2 : 0;
    return static_cast<int>(std::lround(std::log(value / low) / std::log(high / low) * (kShades - 1)));
  };
  std::array<std::string, kShades> paths;
  for (std::size_t row = 0; row < sheet.rows.size(); ++row) {
    int open_shade = -1;
    double open_from = 0;
    const auto close = [&](double to) {
      if (open_shade < 0) return;
      put(paths[static_cast<std::size_t>(open_shade)], "M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z", open_from, g.row_top[row], to - open_from,
          g.row_height - (g.row_height >= 8 ? 1 : 0), open_from - to);
    };
    for (std::size_t column = 0; column < columns; ++column) {
      const double value = values[row * columns + column];
      const int next = std::isfinite(value) ? shade_of(value) : -1;
      const double from = kPlane * static_cast<double>(column) / static_cast<double>(columns);
      if (next == open_shade) continue;
      close(from);
      open_shade = next;
      open_from = from;
    }
    close(kPlane);
  }
  put(out, "<svg x=\"{:.2f}%\" y=\"{:.1f}\" width=\"{:.2f}%\" height=\"{:.1f}\" viewBox=\"0 {:.1f} {:.0f} {:.1f}\" preserveAspectRatio=\"none\">", left,
      kFirstRow, width, g.bottom - kFirstRow, kFirstRow, kPlane, g.bottom - kFirstRow);
  put(out, "<rect class=\"empty\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"/>", kFirstRow, kPlane, g.bottom - kFirstRow - (g.row_height >= 8 ? 1 : 0));
  for (int i = 0; i < kShades; ++i) {
    const auto& path = paths[static_cast<std::size_t>(i)];
    if (!path.empty()) put(out, "<path class=\"{}{}\" d=\"{}\"/>", style.bounds.empty() ? 'h' : 't', i, path);
  }
  for (std::size_t row = 0; row < sheet.rows.size(); ++row) {
    double last = kUnknown, least = INFINITY, most = -INFINITY;
    for (std::size_t column = 0; column < columns; ++column) {
      const double value = values[row * columns + column];
      if (!std::isfinite(value)) continue;
      last = value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    if (!std::isfinite(last)) continue;
    put(out, "<rect class=\"hit\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"><title>{} {}\n{}: {} at the end, {} to {}</title></rect>",
        g.row_top[row], kPlane, g.row_height, escape(sheet.rows[row].name), operand_word(sheet.operands[operand]), style.title,
        value_text(metric, last), value_text(metric, least), value_text(metric, most));
  }
  out += "</svg>";
  if (style.bounds.empty() && high > 0) {
    put(out, "<text class=\"fine\" text-anchor=\"middle\" x=\"{:.2f}%\" y=\"{:.1f}\">{}</text>", left + 0.5 * width, g.bottom + 13,
        power_of_two(low) + "–" + power_of_two(high));
  }
}

void draw_legend(std::string& out, const Look& look, const Geometry& g) {
  if (look.bounds.empty()) return;
  const double width = 100.0 / kShades;
  for (int i = 0; i < kShades; ++i) {
    put(out, "<rect class=\"t{}\" x=\"{:.2f}%\" y=\"{:.1f}\" width=\"{:.2f}%\" height=\"5\"/>", i, i * width, g.bottom + 6, width);
  }
  const auto label = [&](int bound, const char* unit) {
    put(out, "<text class=\"fine\" text-anchor=\"middle\" x=\"{:.2f}%\" y=\"{:.1f}\">{:g}{}</text>", (bound + 1) * width, g.bottom + 23,
        look.bounds[static_cast<std::size_t>(bound)], unit);
  };
  for (const int bound : {0, 2, 4, 6}) label(bound, bound == 6 ? look.bounds_unit : "");
}
}  // namespace

std::pair<std::string, std::string> split_operand(const std::string& tensor) {
  if (tensor.size() > 2 && tensor[tensor.size() - 2] == '.' && std::string_view("xwg").find(tensor.back()) != std::string_view::npos) {
    return {tensor.substr(0, tensor.size() - 2), tensor.substr(tensor.size() - 1)};
  }
  return {tensor, ""};
}

const char* operand_word(const std::string& operand) {
  return operand == "x" ? "input" : operand == "w" ? "weight" : operand == "g" ? "gradient" : "tensor";
}

const char* title_of(HealthMetric metric) { return look(metric).title; }

HealthSheet health_sheet(const Run& run) {
  HealthSheet sheet;
  std::vector<std::int64_t> steps;
  std::unordered_map<std::string, std::size_t> row_of;
  std::array<bool, 4> occurs{};
  static const std::array<std::string, 4> kOperands{"x", "w", "g", ""};
  for (const HealthSample& sample : run.health) {
    if (!sample.of_linear()) continue;
    if (steps.empty() || steps.back() < sample.step) steps.push_back(sample.step);
    const auto [name, operand] = split_operand(sample.tensor);
    if (row_of.emplace(name, sheet.rows.size()).second) sheet.rows.push_back(parse_row(name));
    occurs[static_cast<std::size_t>(std::find(kOperands.begin(), kOperands.end(), operand) - kOperands.begin())] = true;
  }
  if (steps.empty()) return sheet;
  sheet.columns = std::min(steps.size(), kMaxHealthColumns);
  sheet.first_step = steps.front();
  sheet.last_step = steps.back();
  shorten_labels(sheet.rows);
  sort_rows(sheet.rows);
  for (std::size_t row = 0; row < sheet.rows.size(); ++row) row_of[sheet.rows[row].name] = row;

  std::unordered_map<std::string, std::size_t> operand_of;
  for (std::size_t i = 0; i < kOperands.size(); ++i) {
    if (!occurs[i]) continue;
    operand_of[kOperands[i]] = sheet.operands.size();
    sheet.operands.push_back(kOperands[i]);
  }
  for (auto& by_operand : sheet.values) {
    by_operand.assign(sheet.operands.size(), std::vector<double>(sheet.rows.size() * sheet.columns, kUnknown));
  }
  for (const HealthSample& sample : run.health) {
    if (!sample.of_linear()) continue;
    const auto [name, operand] = split_operand(sample.tensor);
    const auto step = static_cast<std::size_t>(std::lower_bound(steps.begin(), steps.end(), sample.step) - steps.begin());
    const std::size_t cell = row_of[name] * sheet.columns + step * sheet.columns / steps.size();
    for (const HealthMetric metric : kHealthMetrics) {
      double& value = sheet.values[static_cast<std::size_t>(metric)][operand_of[operand]][cell];
      value = worse(metric, value, value_of(sample, metric));
    }
  }
  return sheet;
}

WorstSample worst_sample(const Run& run, HealthMetric metric) {
  WorstSample worst;
  for (const HealthSample& sample : run.health) {
    const double value = value_of(sample, metric);
    if (!std::isfinite(value) || (!worst.tensor.empty() && worse(metric, worst.value, value) == worst.value)) continue;
    worst = {sample.tensor, sample.step, value};
  }
  return worst;
}

std::string draw(const HealthSheet& sheet, const std::string& description) {
  if (sheet.rows.empty() || sheet.columns == 0) return "";
  const Geometry g = lay_out(sheet);
  const double height = g.bottom + kLegend;
  const auto begin = [&](const char* css_class) { return fmt::format("<svg class=\"{}\" height=\"{:.0f}\"", css_class, height); };
  std::string out = fmt::format("<div class=\"sheet\" role=\"img\" aria-label=\"{}\">", escape(description));
  for (const HealthMetric metric : kHealthMetrics) {
    // On a phone the groups stand below each other, so each group repeats the labels.
    out += begin(metric == kHealthMetrics.front() ? "labels" : "labels again") + ">";
    draw_labels(out, sheet, g);
    put(out, "</svg>{}><text class=\"name\" y=\"14\">{}</text>", begin("chart"), look(metric).title);
    const auto strips = static_cast<double>(sheet.operands.size());
    const double width = (100 - kStripGap * (strips - 1)) / strips;
    for (std::size_t operand = 0; operand < sheet.operands.size(); ++operand) {
      const double left = static_cast<double>(operand) * (width + kStripGap);
      put(out, "<text class=\"fine\" x=\"{:.2f}%\" y=\"36\">{}</text>", left, operand_word(sheet.operands[operand]));
      draw_strip(out, sheet, g, metric, operand, left, width);
    }
    draw_legend(out, look(metric), g);
    out += "</svg>";
  }
  return out + "</div>";
}

}  // namespace octet::report
