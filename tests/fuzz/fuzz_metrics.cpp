// Reads any bytes as metrics.jsonl and fp8_health.jsonl. Every record must be the same after it was written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "octet/telemetry/jsonl.h"

namespace {
template <class Record>
void check(std::string_view text) {
  using namespace octet::telemetry;
  for (const Record& record : parse_jsonl<Record>(text).records) {
    const std::string line = to_json_line(record);
    const auto back = from_json_line<Record>(line);
    if (!back || to_json_line(*back) != line) std::abort();
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check<octet::telemetry::StepMetrics>(text);
  check<octet::telemetry::HealthSample>(text);
  return 0;
}
