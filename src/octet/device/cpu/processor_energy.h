// The energy that a machine's processors have consumed, from Linux's powercap counters (RAPL). On most machines, only root may
// read them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace octet {

class ProcessorEnergy {
 public:
  // Starts counting. Each processor is a folder "intel-rapl:N" of `powercap`; AMD's processors have the same names.
  explicit ProcessorEnergy(const std::filesystem::path& powercap = "/sys/class/powercap");

  // Returns the joules that all processors of the machine have consumed since the last call, or since construction. Returns
  // nothing if there is no counter or one cannot be read. A counter wraps around to zero after an hour or so; one wrap between
  // two calls is accounted for.
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
