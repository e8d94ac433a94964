// NVML, the driver's library for management. It is loaded when it is asked, as its headers are no part of the toolkit.
#pragma once

#include "octet/device/cuda/gpu_state.h"

namespace octet::cuda {

// Fills in what NVML knows: the driver, and of each GPU power, clocks and links, by its bus id. Without NVML, nvml_error says why.
void ask_nvml(CudaState& state);

}  // namespace octet::cuda
