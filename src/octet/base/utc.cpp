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

}  // namespace octet
