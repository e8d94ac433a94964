#include "octet/device/cuda/gpu_sensors.h"

#include <cstddef>

#include "octet/device/cuda/nvml.h"

namespace octet {
namespace {

using cuda::kNvmlSuccess;
using cuda::Nvml;
using cuda::NvmlDevice;

// What NVML's headers declare.
using EventSet = void*;
struct EventData {
  NvmlDevice device;
  unsigned long long type, data;  // of a critical Xid its number
  unsigned gpu_instance, compute_instance;
};
constexpr int kGpuTemperature = 0;
constexpr unsigned long long kCriticalXid = 0x8;
constexpr unsigned long long kSetClock = 0x2, kPowerLimit = 0x4, kSyncBoost = 0x10;

std::string slowdown_text(unsigned long long bits) {
  if (std::string fault = cuda::fault_of_slowdown(bits); !fault.empty()) return fault;
  if (bits & kPowerLimit) return "its power limit";
  return bits & (kSetClock | kSyncBoost) ? "a fixed clock" : "";
}

GpuReading reading_of(const Nvml& nvml, NvmlDevice device) {
  GpuReading reading{.clock_mhz = nvml.clock_mhz(device)};
  if (const auto milliwatts = nvml.ask<unsigned>("nvmlDeviceGetPowerUsage", device)) reading.power_w = *milliwatts * 1e-3;
  if (const auto millijoules = nvml.ask<unsigned long long>("nvmlDeviceGetTotalEnergyConsumption", device))
    reading.energy_j = static_cast<double>(*millijoules) * 1e-3;
  if (const auto degrees = nvml.ask<unsigned>("nvmlDeviceGetTemperature", device, kGpuTemperature))
    reading.temperature_c = static_cast<int>(*degrees);
  if (const auto bits = nvml.slowdown(device)) reading.slowed_by = slowdown_text(*bits);
  return reading;
}

}  // namespace

struct GpuSensors::Gpus {
  Nvml nvml;
  std::vector<NvmlDevice> devices;
  std::vector<std::optional<std::int64_t>> xids;  // of a GPU whose events NVML tells
  EventSet events = nullptr;
};

GpuSensors::GpuSensors() : gpus_(std::make_unique<Gpus>()) {
  const Nvml& nvml = gpus_->nvml;
  unsigned count = 0;
  if (!nvml.error().empty() || nvml.call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count) != kNvmlSuccess) return;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    nvml.call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", i, &device);
    gpus_->devices.push_back(device);  // null: a GPU that has failed keeps its number
  }
  gpus_->xids.resize(count);
}

GpuSensors::~GpuSensors() {
  if (gpus_->events) gpus_->nvml.call<int(EventSet)>("nvmlEventSetFree", gpus_->events);
}

std::vector<GpuReading> GpuSensors::read() {
  EventData event{};
  while (gpus_->events && gpus_->nvml.call<int(EventSet, EventData*, unsigned)>("nvmlEventSetWait_v2", gpus_->events, &event,
                                                                                0u) == kNvmlSuccess) {
    for (std::size_t i = 0; i < gpus_->devices.size(); ++i) {
      if (gpus_->devices[i] == event.device && gpus_->xids[i]) ++*gpus_->xids[i];
    }
  }
  std::vector<GpuReading> readings;
  for (std::size_t i = 0; i < gpus_->devices.size(); ++i) {
    readings.push_back(gpus_->devices[i] ? reading_of(gpus_->nvml, gpus_->devices[i]) : GpuReading{});
    readings.back().xids = gpus_->xids[i];
  }
  return readings;
}

std::optional<GpuReading> GpuSensors::read(const std::string& bus_id) const {
  NvmlDevice device = gpus_->nvml.error().empty() ? gpus_->nvml.find(bus_id) : nullptr;
  return device ? std::optional(reading_of(gpus_->nvml, device)) : std::nullopt;
}

void GpuSensors::listen() {
  const Nvml& nvml = gpus_->nvml;
  if (gpus_->devices.empty() || gpus_->events) return;
  if (nvml.call<int(EventSet*)>("nvmlEventSetCreate", &gpus_->events) != kNvmlSuccess) gpus_->events = nullptr;
  for (std::size_t i = 0; i < gpus_->devices.size(); ++i) {
    if (!gpus_->events || !gpus_->devices[i]) continue;
    const int code = nvml.call<int(NvmlDevice, unsigned long long, EventSet)>("nvmlDeviceRegisterEvents", gpus_->devices[i],
                                                                              kCriticalXid, gpus_->events);
    if (code == kNvmlSuccess) gpus_->xids[i] = 0;
  }
}

}  // namespace octet
