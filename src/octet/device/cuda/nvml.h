// NVML, the driver's management library. It is loaded at run time, because its headers are not part of the CUDA toolkit. It
// does not need CUDA, so every build can ask it.
#pragma once

#include <dlfcn.h>

#include <optional>
#include <string>

#include "octet/device/cuda/gpu_state.h"

namespace octet::cuda {

// Declarations that NVML's headers would provide.
using NvmlDevice = struct NvmlDeviceHandle*;
inline constexpr int kNvmlSuccess = 0, kNvmlNotFound = 13;

class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Why NVML cannot be used, or "".
  const std::string& error() const { return error_; }

  // Calls a function of the library by name. Returns kNvmlNotFound if this version of the library lacks the function.
  template <class Function, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<Function*>(::dlsym(library_, name));
    return function ? function(arguments...) : kNvmlNotFound;
  }

  // Returns a number that the NVML function `name` writes through a pointer, or nothing if the call fails.
  template <class Number, class... Arguments>
  std::optional<Number> ask(const char* name, NvmlDevice device, Arguments... arguments) const {
    Number value{};
    if (call<int(NvmlDevice, Arguments..., Number*)>(name, device, arguments..., &value) != kNvmlSuccess) return std::nullopt;
    return value;
  }
  // Returns null if NVML knows no such GPU.
  NvmlDevice find(const std::string& bus_id) const;
  // The present clock of the multiprocessors in MHz.
  std::optional<int> clock_mhz(NvmlDevice device) const;
  // The bits that say why the clock is held down.
  std::optional<unsigned long long> slowdown(NvmlDevice device) const;

 private:
  std::string words(int code) const;

  void* library_;
  std::string error_;
};

// Returns why the clock is held down if better cooling or a better power supply would help: "heat", "the power supply" or "".
std::string fault_of_slowdown(unsigned long long bits);

// Fills in what NVML knows: the driver's version, and the power, clocks and links of each GPU, which is found by its bus id.
// Sets nvml_error if NVML cannot be used.
void ask_nvml(CudaState& state);

}  // namespace octet::cuda
