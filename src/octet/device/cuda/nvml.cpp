#include "octet/device/cuda/nvml.h"

namespace octet::cuda {
namespace {

constexpr int kMultiprocessorClock = 1;
constexpr int kUncorrectedEcc = 1, kSinceDriverLoaded = 0, kLinkRecoveries = 1;
constexpr unsigned kMostLinks = 18;
constexpr unsigned long long kSlowedByHardware = 0x8, kHot = 0x20, kVeryHot = 0x40, kPowerBrake = 0x80;

void ask_errors(const Nvml& nvml, NvmlDevice device, GpuState& gpu) {
  const auto errors =
      nvml.ask<unsigned long long>("nvmlDeviceGetTotalEccErrors", device, kUncorrectedEcc, kSinceDriverLoaded);
  if (errors) gpu.ecc_uncorrected = static_cast<std::int64_t>(*errors);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  const int code = nvml.call<int(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*)>(
      "nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed);
  if (code == kNvmlSuccess) {
    gpu.rows_pending = pending != 0;
    gpu.rows_failed = failed != 0;
  }
}

void ask_pcie(const Nvml& nvml, NvmlDevice device, GpuState& gpu) {
  const auto number = [&](const char* name) -> std::optional<int> {
    const auto value = nvml.ask<unsigned>(name, device);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  gpu.pcie_generation = number("nvmlDeviceGetCurrPcieLinkGeneration");
  gpu.pcie_generation_max = number("nvmlDeviceGetMaxPcieLinkGeneration");
  gpu.pcie_width = number("nvmlDeviceGetCurrPcieLinkWidth");
  gpu.pcie_width_max = number("nvmlDeviceGetMaxPcieLinkWidth");
}

void ask(const Nvml& nvml, NvmlDevice device, GpuState& gpu) {
  const auto watts = [&](const char* name) -> std::optional<double> {
    const auto milliwatts = nvml.ask<unsigned>(name, device);
    return milliwatts ? std::optional(*milliwatts * 1e-3) : std::nullopt;
  };
  gpu.power_cap_w = watts("nvmlDeviceGetEnforcedPowerLimit");
  gpu.power_default_w = watts("nvmlDeviceGetPowerManagementDefaultLimit");
  gpu.clock_mhz = nvml.clock_mhz(device);
  const auto most_mhz = nvml.ask<unsigned>("nvmlDeviceGetMaxClockInfo", device, kMultiprocessorClock);
  if (most_mhz) gpu.clock_max_mhz = static_cast<int>(*most_mhz);
  if (const auto bits = nvml.slowdown(device)) gpu.slowed_by = fault_of_slowdown(*bits);
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

Nvml::Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {  // never closed
  if (!library_) {
    const char* const why = ::dlerror();
    error_ = why ? why : "libnvidia-ml.so.1 cannot be loaded";
    return;
  }
  const int code = call<int()>("nvmlInit_v2");
  if (code != kNvmlSuccess) error_ = words(code);
}

Nvml::~Nvml() {
  if (error_.empty()) call<int()>("nvmlShutdown");
}

std::string Nvml::words(int code) const {
  const auto function = reinterpret_cast<const char* (*)(int)>(::dlsym(library_, "nvmlErrorString"));
  return function ? function(code) : "code " + std::to_string(code);
}

NvmlDevice Nvml::find(const std::string& bus_id) const {
  NvmlDevice device = nullptr;
  const int code = call<int(const char*, NvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2", bus_id.c_str(), &device);
  return code == kNvmlSuccess ? device : nullptr;
}

std::optional<int> Nvml::clock_mhz(NvmlDevice device) const {
  const auto megahertz = ask<unsigned>("nvmlDeviceGetClockInfo", device, kMultiprocessorClock);
  return megahertz ? std::optional(static_cast<int>(*megahertz)) : std::nullopt;
}

std::optional<unsigned long long> Nvml::slowdown(NvmlDevice device) const {
  // The name since driver 535, and the one before it.
  const auto bits = ask<unsigned long long>("nvmlDeviceGetCurrentClocksEventReasons", device);
  return bits ? bits : ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device);
}

std::string fault_of_slowdown(unsigned long long bits) {
  if (bits & (kHot | kVeryHot)) return "heat";
  if (bits & (kPowerBrake | kSlowedByHardware)) return "the power supply";
  return "";
}

void ask_nvml(CudaState& state) {
  const Nvml nvml;
  state.nvml_error = nvml.error();
  if (!state.nvml_error.empty()) return;
  char version[80] = "";  // NVML's longest
  const auto size = static_cast<unsigned>(sizeof version);
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", version, size) == kNvmlSuccess) state.driver = version;
  for (GpuState& gpu : state.gpus) {
    if (NvmlDevice device = nvml.find(gpu.bus_id)) ask(nvml, device, gpu);
  }
}

}  // namespace octet::cuda
