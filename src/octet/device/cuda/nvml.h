// NVML, the driver's library for management. It is loaded when it is asked, as its headers are no part of the toolkit. It needs
// no CUDA, so every build can ask it.
#pragma once

#include <dlfcn.h>

#include <optional>
#include <string>

#include "octet/device/cuda/gpu_state.h"

namespace octet::cuda {

// What NVML's headers declare.
using NvmlDevice = struct NvmlDeviceHandle*;
inline constexpr int kNvmlSuccess = 0, kNvmlNotFound = 13;

class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Why NVML says nothing; "" when it does.
  const std::string& error() const { return error_; }

  // Calls a function of the library by name. One that this version lacks fails as NVML's would.
  template <class Function, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<Function*>(::dlsym(library_, name));
    return function ? function(arguments...) : kNvmlNotFound;
  }

  // A number that NVML writes through a pointer.
  template <class Number, class... Arguments>
  std::optional<Number> ask(const char* name, NvmlDevice device, Arguments... arguments) const {
    Number value{};
    if (call<int(NvmlDevice, Arguments..., Number*)>(name, device, arguments..., &value) != kNvmlSuccess) return std::nullopt;
    return value;
  }
  // Null if NVML knows no such GPU.
  NvmlDevice find(const std::string& bus_id) const;
  // The present clock of the multiprocessors.
  std::optional<int> clock_mhz(NvmlDevice device) const;
  // The bits that say why the clock is held down.
  std::optional<unsigned long long> slowdown(NvmlDevice device) const;

 private:
  std::string words(int code) const;

  void* library_;
  std::string error_;
};

// Why the clock is held down though the GPU could be cooled or fed better: "heat", "the power supply" or "".
std::string fault_of_slowdown(unsigned long long bits);

// Fills in what NVML knows: the driver, and of each GPU power, clocks and links, by its bus id. Without NVML, nvml_error says why.
void ask_nvml(CudaState& state);

}  // namespace octet::cuda
