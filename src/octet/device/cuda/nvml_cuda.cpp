#include <dlfcn.h>

#include "octet/device/cuda/nvml.h"

namespace octet::cuda {
namespace {

// What NVML's headers declare.
using Device = struct NvmlDevice*;
constexpr int kSuccess = 0, kMultiprocessorClock = 1;
constexpr int kUncorrectedEcc = 1, kSinceDriverLoaded = 0, kLinkRecoveries = 1;
constexpr unsigned kMostLinks = 18;
constexpr unsigned long long kSlowedByHardware = 0x8, kHot = 0x20, kVeryHot = 0x40, kPowerBrake = 0x80;

class Library {
 public:
  Library() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {  // never closed
    if (!library_) {
      const char* const why = ::dlerror();
      error_ = why ? why : "libnvidia-ml.so.1 cannot be loaded";
      return;
    }
    const int code = call<int()>("nvmlInit_v2");
    if (code != kSuccess) error_ = words(code);
  }
  ~Library() {
    if (error_.empty()) call<int()>("nvmlShutdown");
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const std::string& error() const { return error_; }

  // Calls a function of the library by name. One that this version lacks fails as NVML's would.
  template <class Function, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    constexpr int kNotFound = 13;
    const auto function = reinterpret_cast<Function*>(::dlsym(library_, name));
    return function ? function(arguments...) : kNotFound;
  }

  // A number that NVML writes through a pointer.
  template <class Number, class... Arguments>
  std::optional<Number> ask(const char* name, Device device, Arguments... arguments) const {
    Number value{};
    if (call<int(Device, Arguments..., Number*)>(name, device, arguments..., &value) != kSuccess) return std::nullopt;
    return value;
  }

 private:
  std::string words(int code) const {
    const auto function = reinterpret_cast<const char* (*)(int)>(::dlsym(library_, "nvmlErrorString"));
    return function ? function(code) : "code " + std::to_string(code);
  }

  void* library_;
  std::string error_;
};

std::string reason(unsigned long long bits) {
  if (bits & (kHot | kVeryHot)) return "heat";
  if (bits & (kPowerBrake | kSlowedByHardware)) return "the power supply";
  return "";
}

void ask_errors(const Library& nvml, Device device, GpuState& gpu) {
  const auto errors =
      nvml.ask<unsigned long long>("nvmlDeviceGetTotalEccErrors", device, kUncorrectedEcc, kSinceDriverLoaded);
  if (errors) gpu.ecc_uncorrected = static_cast<std::int64_t>(*errors);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  const int code = nvml.call<int(Device, unsigned*, unsigned*, unsigned*, unsigned*)>(
      "nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed);
  if (code == kSuccess) {
    gpu.rows_pending = pending != 0;
    gpu.rows_failed = failed != 0;
  }
}

void ask_pcie(const Library& nvml, Device device, GpuState& gpu) {
  const auto number = [&](const char* name) -> std::optional<int> {
    const auto value = nvml.ask<unsigned>(name, device);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  gpu.pcie_generation = number("nvmlDeviceGetCurrPcieLinkGeneration");
  gpu.pcie_generation_max = number("nvmlDeviceGetMaxPcieLinkGeneration");
  gpu.pcie_width = number("nvmlDeviceGetCurrPcieLinkWidth");
  gpu.pcie_width_max = number("nvmlDeviceGetMaxPcieLinkWidth");
}

void ask(const Library& nvml, Device device, GpuState& gpu) {
  const auto watts = [&](const char* name) -> std::optional<double> {
    const auto milliwatts = nvml.ask<unsigned>(name, device);
    return milliwatts ? std::optional(*milliwatts * 1e-3) : std::nullopt;
  };
  const auto clock = [&](const char* name) -> std::optional<int> {
    const auto megahertz = nvml.ask<unsigned>(name, device, kMultiprocessorClock);
    return megahertz ? std::optional(static_cast<int>(*megahertz)) : std::nullopt;
  };
  gpu.power_cap_w = watts("nvmlDeviceGetEnforcedPowerLimit");
  gpu.power_default_w = watts("nvmlDeviceGetPowerManagementDefaultLimit");
  gpu.clock_mhz = clock("nvmlDeviceGetClockInfo");
  gpu.clock_max_mhz = clock("nvmlDeviceGetMaxClockInfo");
  // The name since driver 535, and the one before it.
  auto bits = nvml.ask<unsigned long long>("nvmlDeviceGetCurrentClocksEventReasons", device);
  if (!bits) bits = nvml.ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device);
  if (bits) gpu.slowed_by = reason(*bits);
  for (unsigned link = 0; link < kMostLinks; ++link) {
    const auto active = nvml.ask<int>("nvmlDeviceGetNvLinkState", device, link);
    if (!active) break;
    gpu.nvlinks = gpu.nvlinks.value_or(0) + 1;
    gpu.nvlinks_active = gpu.nvlinks_active.value_or(0) + (*active == 1 ? 1 : 0);
    const auto recoveries = nvml.ask<unsigned long long>("nvmlDeviceGetNvLinkErrorCounter", device, link, kLinkRecoveries);
    if (recoveries) gpu.nvlink_recoveries = gpu.nvlink_recoveries.value_or(0) + static_cast<std::int64_t>(*recoveries);
  }
  ask_errors(nvml, device, gpu);
  ask_pcie(nvml, device, gpu);
}

}  // namespace

void ask_nvml(CudaState& state) {
  const Library nvml;
  state.nvml_error = nvml.error();
  if (!state.nvml_error.empty()) return;
  char version[80] = "";  // NVML's longest
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", version, static_cast<unsigned>(sizeof version)) == kSuccess) {
    state.driver = version;
  }
  for (GpuState& gpu : state.gpus) {
    Device device = nullptr;
    if (nvml.call<int(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2", gpu.bus_id.c_str(), &device) == kSuccess) {
      ask(nvml, device, gpu);
    }
  }
}

}  // namespace octet::cuda
