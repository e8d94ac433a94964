#include "octet/app/energy.h"

namespace octet::app {

Energy::Energy(int gpu) : bus_id_(gpu < 0 ? "" : cuda_bus_id(gpu)), last_j_(read_gpu()) {}

std::optional<double> Energy::take_joules() {
  if (bus_id_.empty()) return processors_.take_joules();
  const std::optional<double> now_j = read_gpu(), before_j = last_j_;
  last_j_ = now_j;
  return now_j && before_j ? std::optional(*now_j - *before_j) : std::nullopt;
}

std::optional<double> Energy::read_gpu() const {
  const std::optional<GpuReading> gpu = bus_id_.empty() ? std::nullopt : sensors_.read(bus_id_);
  return gpu ? gpu->energy_j : std::nullopt;
}

}  // namespace octet::app
