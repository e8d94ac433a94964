// Measures the energy that a benchmark takes.
#pragma once

#include <optional>
#include <string>

#include "octet/device/cpu/processor_energy.h"
#include "octet/device/cuda/gpu_sensors.h"

namespace octet::app {

class Energy {
 public:
  // Starts counting for CUDA's GPU `gpu`, by NVML, or with -1 for all processors of this machine, by RAPL.
  explicit Energy(int gpu);

  // Returns the joules since the last call, or since construction; nothing if there is no counter.
  std::optional<double> take_joules();

 private:
  std::optional<double> read_gpu() const;

  std::string bus_id_;  // "" for processors
  GpuSensors sensors_;
  std::optional<double> last_j_;
  ProcessorEnergy processors_;
};

}  // namespace octet::app
