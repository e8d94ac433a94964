#include "octet/app/live_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

constexpr std::string_view kGap = "  ";
// Part of the field of memory in any unit from KiB on, and of the field of tokens/s on any device.
constexpr std::string_view kBytes = "iB", kRate = " tok/s/";
constexpr int kLeastBar = 8, kMostBar = 32, kLeastSpark = 8, kMostSpark = 24;

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(kGap), line.size());
    fields.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + kGap.size(), line.size()));
  }
  return fields;
}

std::string join(const std::vector<std::string_view>& fields) {
  std::string line;
  for (const std::string_view field : fields) line.append(line.empty() ? "" : kGap).append(field);
  return line;
}

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// A half column of the bar has its own glyph.
std::string bar(double share, int width, Glyphs glyphs) {
  if (glyphs == Glyphs::ascii) {
    const int full = static_cast<int>(std::lround(share * (width - 2)));
    return "[" + std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(width - 2 - full), '.') +
           "]";
  }
  const int halves = static_cast<int>(std::lround(share * 2 * width));
  return repeat("━", halves / 2) + (halves % 2 ? "╸" : "") + repeat("─", width - (halves + 1) / 2);
}

std::string sparkline(std::span<const double> losses) {
  static constexpr std::array<const char*, 8> kLevels{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = INFINITY, high = -INFINITY;
  for (const double loss : losses) {
    if (!std::isfinite(loss)) continue;
    low = std::min(low, loss);
    high = std::max(high, loss);
  }
  std::string text;
  for (const double loss : losses) {
    const double level = high > low ? (loss - low) / (high - low) * (kLevels.size() - 1) : 0;
    text += std::isfinite(loss) ? kLevels[static_cast<std::size_t>(std::lround(level))] : "×";
  }
  return text;
}

}  // namespace

LiveStep live_step(std::string_view console_line) {
  LiveStep at;
  const auto read = [](std::string_view text, auto& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  for (const std::string_view field : fields_of(console_line)) {
    const std::string_view value = field.substr(std::min(field.find(' ') + 1, field.size()));
    if (field.starts_with("step ")) {
      const std::size_t slash = value.find('/');
      if (slash == std::string_view::npos || !read(value.substr(0, slash), at.step) || !read(value.substr(slash + 1), at.steps))
        return {};
    } else if (field.starts_with("loss ")) {
      if (!read(value, at.loss)) at.loss = telemetry::kUnknown;
    } else if (field.find(kRate) != std::string_view::npos) {
      at.worker =
          field.ends_with(telemetry::rate_unit(telemetry::Worker::gpu)) ? telemetry::Worker::gpu : telemetry::Worker::process;
      std::string digits(field.substr(0, field.find(' ')));
      std::erase(digits, ',');
      if (!read(std::string_view(digits), at.tokens_per_s)) at.tokens_per_s = telemetry::kUnknown;
    } else if (field.starts_with("eta ")) {
      at.eta = value;
    }
  }
  return at;
}

std::string live_text(const LiveStep& at, std::span<const double> losses, int columns, Glyphs glyphs) {
  const double share = at.steps > 0 ? std::clamp(static_cast<double>(at.step) / static_cast<double>(at.steps), 0.0, 1.0) : 0;
  const std::string step = fmt::format("step {}/{}", at.step, at.steps);
  int room = columns - 1 - static_cast<int>(step.size());
  if (room < 0) return step.substr(0, static_cast<std::size_t>(std::max(columns - 1, 0)));
  const auto take = [&](int width) {
    const bool fits = width > 0 && width <= room;
    if (fits) room -= width;
    return fits;
  };
  const auto take_field = [&](const std::string& text) {
    return !text.empty() && take(static_cast<int>(text.size() + kGap.size())) ? text : "";
  };
  // From the field that a reader would miss most to the least important one.
  const std::string loss = take_field(std::isnan(at.loss) ? "" : fmt::format("loss {:.3f}", at.loss));
  const std::string eta = take_field(at.eta.empty() ? "" : "eta " + at.eta);
  const std::string label = take_field(at.label);
  const std::string percent = take_field(fmt::format("{:3.0f}%", std::floor(100 * share)));
  int bar_width = take(kLeastBar + static_cast<int>(kGap.size())) ? kLeastBar : 0;
  const std::string rate = take_field(std::isnan(at.tokens_per_s) ? "" : telemetry::format_rate(at.tokens_per_s, at.worker));
  const bool sparks = glyphs == Glyphs::unicode && !loss.empty() && take(kLeastSpark + 1);
  const int spark_width = sparks ? kLeastSpark + std::min(room / 2, kMostSpark - kLeastSpark) : 0;
  if (sparks) room -= spark_width - kLeastSpark;
  if (bar_width > 0) bar_width += std::min(room, kMostBar - kLeastBar);

  const std::span<const double> shown = losses.last(std::min(losses.size(), static_cast<std::size_t>(spark_width)));
  const std::string loss_field = shown.empty() ? loss : loss + " " + sparkline(shown);
  const std::string drawn = bar_width > 0 ? bar(share, bar_width, glyphs) : "";
  std::vector<std::string_view> fields{label, drawn, percent, step, loss_field, rate, eta};
  std::erase_if(fields, [](std::string_view field) { return field.empty(); });
  return join(fields);
}

std::string fit_console_line(std::string_view line, int columns) {
  static constexpr std::array<std::string_view, 7> kLeast{"eta ", "lr ", kBytes, "mfu ", " TFLOPS", "grad ", kRate};
  std::vector<std::string_view> fields = fields_of(line);
  const auto width = static_cast<std::size_t>(std::max(columns, 0));
  for (const std::string_view least : kLeast) {
    if (join(fields).size() <= width) break;
    std::erase_if(fields, [&](std::string_view field) { return field.find(least) != std::string_view::npos; });
  }
  return join(fields).substr(0, width);
}

}  // namespace octet::app
