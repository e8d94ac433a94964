// What `octet doctor` asks about the GPUs of this machine. Nothing here throws: a GPU that cannot be used is also described.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octet {

struct GpuState {
  std::string name, bus_id;
  int compute_capability = 0;  // 90 for Hopper
  bool has_code = false;       // this program has kernels for it
  std::string error;           // CUDA's message if the GPU cannot be used, otherwise ""
  std::size_t memory_bytes = 0, memory_free_bytes = 0;
  std::optional<bool> multicast;  // whether the driver reports NVLink multicast

  // From NVML, the driver's management library; empty if it does not report the value.
  std::optional<double> power_cap_w, power_default_w;
  std::optional<int> clock_mhz, clock_max_mhz;  // of the multiprocessors, now and at most
  std::optional<std::string> slowed_by;         // why the clock is held down: "heat", "the power supply" or ""
  std::optional<int> nvlinks, nvlinks_active;
  std::optional<std::int64_t> ecc_uncorrected;  // errors since the driver was loaded that ECC could not correct
  std::optional<bool> rows_pending;             // rows of memory wait for a reset to be replaced
  std::optional<bool> rows_failed;              // rows of memory could not be replaced
  std::optional<int> pcie_generation, pcie_generation_max, pcie_width, pcie_width_max;
  std::optional<std::int64_t> nvlink_recoveries;  // how often links were retrained after errors, summed over all links
};

struct CudaState {
  int driver_cuda = 0;   // the newest CUDA that the driver serves: 13000 for 13.0; 0 without a driver
  int runtime_cuda = 0;  // the CUDA of this program
  std::string driver;    // version of the driver, by NVML
  std::string nvml_error;  // why NVML cannot be used, or ""
  std::string error;       // CUDA's message if it finds no GPU, otherwise ""
  std::vector<int> architectures;  // for which this program has code: 90
  std::vector<GpuState> gpus;      // the GPUs that CUDA lists
};

// Returns the state of CUDA and of every GPU, and creates a context on each. Empty if this build has no CUDA backend.
CudaState cuda_state();

}  // namespace octet
