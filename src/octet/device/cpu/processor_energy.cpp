#include "octet/device/cpu/processor_energy.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>

namespace octet {
namespace {

std::optional<std::int64_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

// "intel-rapl:0" is a processor; "intel-rapl:0:1" is a part of it, such as its memory.
bool is_processor(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with("intel-rapl:") && std::count(name.begin(), name.end(), ':') == 1;
}

}  // namespace

ProcessorEnergy::ProcessorEnergy(const std::filesystem::path& powercap) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(powercap, none)) {
    const std::filesystem::path& folder = entry.path();
    std::string name;
    if (!is_processor(folder) || !(std::ifstream(folder / "name") >> name) || !name.starts_with("package")) continue;
    const std::filesystem::path file = folder / "energy_uj";
    const std::optional<std::int64_t> now = number_in(file), range = number_in(folder / "max_energy_range_uj");
    if (now && range) {
      counters_.push_back({file, *range, *now});
    } else {
      complete_ = false;
    }
  }
}

std::optional<double> ProcessorEnergy::take_joules() {
  if (counters_.empty() || !complete_) return std::nullopt;
  double joules = 0;
  for (Counter& counter : counters_) {
    const std::optional<std::int64_t> now = number_in(counter.file);
    if (!now) return std::nullopt;
    const std::int64_t used = *now - counter.last_uj;
    joules += static_cast<double>(used < 0 ? used + counter.range_uj : used) * 1e-6;
    counter.last_uj = *now;
  }
  return joules;
}

}  // namespace octet
