// Multiplies known matrices on a device repeatedly, and checks every result to the bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/app/exact_product.h"
#include "octet/device/device.h"

namespace octet::app {

struct GemmLoad {
  ProductShape shape;
  double seconds = 1;   // how long GEMMs are started
  double repeat_s = 0;  // time of GEMMs between two checks
};

struct GemmCheck {
  std::string wrong;                            // "FP8 GEMM: element ..."; "" if all results were right
  std::int64_t gemms = 0;                       // that were computed
  std::vector<double> fp8_gflops, bf16_gflops;  // of each repeat after the first
};

// Runs FP8 and BF16 GEMMs in turn, each at least twice. `index` is the GPU; a GPU without FP8 runs only BF16. Reports
// exceptions of the device in `wrong`.
GemmCheck check_gemm(DeviceKind kind, int index, const GemmLoad& load);

}  // namespace octet::app
