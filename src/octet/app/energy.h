// The energy that a measurement takes.
#pragma once

#include <optional>
#include <string>

#include "octet/device/cpu/processor_energy.h"
#include "octet/device/cuda/gpu_sensors.h"

namespace octet::app {

class Energy {
 public:
  // Begins to count for CUDA's GPU `gpu`, by NVML, or with -1 for all processors of this machine, by RAPL.
  explicit Energy(int gpu);

  // Joules since the last call, or since the start; nothing where there is no counter.
  std::optional<double> take_joules();

 private:
  std::optional<double> read_gpu() const;

  std::string bus_id_;  // "" for processors
  GpuSensors sensors_;
  std::optional<double> last_j_;
  ProcessorEnergy processors_;
};

}  // namespace octet::app
