#include "octet/telemetry/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace octet::telemetry {
namespace {
std::string group_digits(std::string digits) {
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  for (std::size_t end = digits.size(); end > first + 3;) {
    end -= 3;
    digits.insert(end, 1, ',');
  }
  return digits;
}

struct Unit {
  double size;
  const char* name;
};
template <std::size_t kCount>
std::string with_unit(double value, const std::array<Unit, kCount>& units, const char* below) {
  for (const auto& [size, name] : units) {
    // From 0.9995 of a unit on, three digits already round to 1.00 of it.
    if (std::abs(value) >= 0.9995 * size) return format_significant(value / size, 3) + " " + name;
  }
  return fmt::format("{:.0f}{}", value, below);
}
}  // namespace

std::string format_count(std::int64_t count) { return group_digits(std::to_string(count)); }

std::string format_count(double count) {
  if (!std::isfinite(count)) return fmt::format("{}", count);
  const std::string digits = fmt::format("{:.0f}", count);
  return digits == "-0" ? "0" : group_digits(digits);
}

std::string format_count(std::int64_t count, std::string_view noun) {
  const char* const ending = count == 1 ? "" : noun.ends_with("ch") || noun.ends_with("s") ? "es" : "s";
  return fmt::format("{} {}{}", format_count(count), noun, ending);
}

std::string format_compact(double count) {
  if (!std::isfinite(count)) return fmt::format("{}", count);
  return with_unit(count, std::array<Unit, 4>{{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}}}, "");
}

std::string format_bytes(std::uint64_t bytes) {
  return with_unit(static_cast<double>(bytes),
                   std::array<Unit, 4>{{{0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}}}, " B");
}

std::string format_gib(double gib) {
  if (!std::isfinite(gib) || gib < 0) return "?";
  return format_bytes(static_cast<std::uint64_t>(std::llround(std::min(gib, 0x1p30) * 0x1p30)));
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  std::string unit;
  for (const char c : text) unit += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  constexpr std::string_view kPrefixes = "KMGT";
  int power = 0;
  double base = 1000;
  if (!unit.empty() && unit != "B") {
    const std::size_t prefix = kPrefixes.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (prefix == std::string_view::npos || (!rest.empty() && rest != "B" && rest != "IB")) return std::nullopt;
    power = static_cast<int>(prefix) + 1;
    if (rest == "IB") base = 1024;
  }
  const double bytes = std::floor(number * std::pow(base, power));
  if (!(std::abs(bytes) < 0x1p63)) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e10) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  const std::int64_t minutes = whole / 60;
  if (minutes < 24 * 60) return fmt::format("{}h{:02}m", minutes / 60, minutes % 60);
  const std::int64_t hours = minutes / 60;
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::string format_significant(double value, int digits) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value == 0) return fmt::format("{:.{}f}", 0.0, std::max(0, digits - 1));
  // The number of decimals depends on the magnitude after rounding: 9.996 with three digits is 10.0.
  const std::string rounded = fmt::format("{:.{}e}", value, std::max(0, digits - 1));
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  if (exponent < -4 || exponent >= 6) return rounded;
  return fmt::format("{:.{}f}", value, std::max(0, digits - 1 - exponent));
}

std::string format_fixed(double value, int decimals) {
  return std::abs(value) < 1e9 ? fmt::format("{:.{}f}", value, decimals) : fmt::format("{:.{}e}", value, decimals);
}

std::string format_share(double share) { return fmt::format("{:.1f}%", 100 * share); }

Worker worker_of(std::string_view device) { return device == "cuda" ? Worker::gpu : Worker::process; }
std::string_view rate_unit(Worker worker) { return worker == Worker::gpu ? "tok/s/gpu" : "tok/s/process"; }
std::string_view rate_title(Worker worker) { return worker == Worker::gpu ? "tokens/s/GPU" : "tokens/s/process"; }
std::string format_rate(double tokens_per_s, Worker worker) {
  return fmt::format("{} {}", format_count(tokens_per_s), rate_unit(worker));
}

}  // namespace octet::telemetry
