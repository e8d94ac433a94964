// Reads the sensors of a machine's GPUs through NVML, without a CUDA context. Nothing here throws. Without NVML, no GPUs are
// found.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octet {

struct GpuReading {
  std::optional<int> clock_mhz{};  // of the multiprocessors
  std::optional<double> power_w{};
  std::optional<double> energy_j{};  // since the driver was loaded
  std::optional<int> temperature_c{};
  std::string slowed_by{};  // why the clock is held down: "heat", "the power supply", "its power limit", "a fixed clock" or ""
  std::optional<std::int64_t> xids{};  // errors that the driver has reported since listen()
};

// Calls may wait for the driver, for long if a GPU has failed. Use an object from one thread at a time.
class GpuSensors {
 public:
  GpuSensors();
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  // Reads all GPUs, in the order of nvidia-smi.
  std::vector<GpuReading> read();
  // Reads the GPU with this PCI bus id.
  std::optional<GpuReading> read(const std::string& bus_id) const;
  // Begins to count Xids.
  void listen();

 private:
  struct Gpus;
  std::unique_ptr<Gpus> gpus_;
};

// Returns the PCI bus id of the GPU with CUDA's number `index`, without creating a context on it. "" if there is no such GPU.
std::string cuda_bus_id(int index);

}  // namespace octet
