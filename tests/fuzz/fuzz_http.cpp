// Reads any bytes as an HTTP request. It must be refused with a status, or have a path that begins with a slash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "octet/app/http_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto length = octet::app::http_head_length(bytes);
  if (length && *length > size) std::abort();
  const octet::app::HttpRequest request = octet::app::parse_http_request(length ? bytes.substr(0, *length) : bytes);
  const bool refused = request.refused >= 400 && request.refused < 600;
  if (!refused && (request.refused != 0 || request.path.empty() || request.path.front() != '/')) std::abort();
  return 0;
}
