#include "octet/base/utc.h"

#include <ctime>

namespace octet {

std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  gmtime_r(&now, &fields);
  char text[32];
  return {text, std::strftime(text, sizeof text, format, &fields)};
}

std::optional<double> seconds_of_utc(const std::string& text) {
  std::tm time{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (!end || *end != '\0') return std::nullopt;
  return static_cast<double>(::timegm(&time));
}

}  // namespace octet
