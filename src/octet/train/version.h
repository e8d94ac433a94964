#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::train {

// "0.2.0": the version of the project in CMakeLists.txt.
const char* version();

// The commit that this program was built from: "1b17042f00aa", with "+changes" if files differed from it, or "unknown" if the
// sources were no git checkout (cmake/commit.cmake).
const char* commit();
// "0.2.0 (commit 1b17042f00aa)". Programs with different sources have different texts, if both know their commit.
std::string version_text();

// Devices and processor that this program was compiled for: "CPU, native", "CUDA 90a-real and CPU, x86-64-v3".
const char* build_name();

// {"build": ..., "products": ..., "cublaslt": ..., "cudnn": ..., "driver": ..., "cuda": ...}: what determines how this program
// computes on the device, as a JSON object. Libraries for GPUs are included only for a GPU.
std::string versions_json(DeviceKind device);

// "AMD EPYC 9654 96-Core Processor", "NVIDIA H200": the system's name of the processor or of the first GPU, on which this takes
// memory.
std::string device_name(DeviceKind device);
// "OpenBLAS SkylakeX and AMX-BF16": the kernels whose order of sums decides the bits of products on a CPU. "" on other devices, where the
// library's choice of algorithms decides them.
std::string product_kernels(DeviceKind device);

}  // namespace octet::train
