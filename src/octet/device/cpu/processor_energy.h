// What the processors of a machine have consumed, by the counters that Linux's powercap shows (RAPL). Mostly root alone may read
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace octet {

class ProcessorEnergy {
 public:
  // Begins to count. Each processor is a folder "intel-rapl:N" of `powercap`, also on processors of AMD.
  explicit ProcessorEnergy(const std::filesystem::path& powercap = "/sys/class/powercap");

  // Joules of all processors of the machine since the last call, or since the start; nothing if there is no counter or one cannot
  // be read. A counter that has begun anew at zero once in between (after an hour or so) is understood.
  std::optional<double> take_joules();

 private:
  struct Counter {
    std::filesystem::path file;
    std::int64_t range_uj, last_uj;
  };
  std::vector<Counter> counters_;
  bool complete_ = true;
};

}  // namespace octet
