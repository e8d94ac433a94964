#include "octet/plan/memory_table.h"

#include <fmt/format.h>

#include "octet/telemetry/format.h"

namespace octet::plan {

std::string memory_table(const std::array<std::size_t, kMemoryCategories>& bytes, std::size_t snapshot) {
  std::string table;
  std::size_t total = 0;
  const auto line = [&](std::string_view name, std::size_t amount) {
    table += fmt::format("  {:<15} {:>18} bytes  {:>10}\n", name, telemetry::format_count(static_cast<std::int64_t>(amount)),
                         telemetry::format_bytes(amount));
  };
  for (std::size_t i = 0; i < kDeviceCategories; ++i) {
    line(name_of(static_cast<MemoryCategory>(i)), bytes[i]);
    total += bytes[i];
  }
  line("total", total);
  if (bytes.back() > 0) line("states (host)", bytes.back());
  if (snapshot > 0) line("snapshot (host)", snapshot);
  return table;
}

}  // namespace octet::plan
