// The highest rates that an H200 reaches, and the copy rate of an H100. They give the shortest possible times in a profile.
// docs/measurements/h200-ceilings.md and h100-80gb.md say how they were measured. An H100 has the same multiprocessors and watts,
// and its products were as fast.
#pragma once

#include <algorithm>
#include <string_view>

#include "octet/device/device.h"
#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::app {

inline constexpr double kH200CopyBytesPerSecond = 4.3e12;
inline constexpr double kH100CopyBytesPerSecond = 3.0e12;
inline constexpr double kNvlinkBytesPerSecond = 324e9;  // of the bus, in NCCL's all-gather of 1 GiB between four

constexpr bool is_grouped(std::string_view op) { return op.ends_with(kernels::kGroupedSuffix); }
// The highest rate, in operations per second, that an op of a profile sustains within a step at 700 W; 0 for ops that memory
// bounds. cuDNN's attention alone reaches 620 and 525 for a moment, but no step sustains that.
constexpr double ceiling_flops(std::string_view op) {
  if (is_grouped(op)) op.remove_suffix(kernels::kGroupedSuffix.size());
  struct Ceiling {
    std::string_view op;
    double teraflops;
  };
  constexpr Ceiling kCeilings[] = {
      {"gemm bf16", 690},
      {"gemm fp8 fast", 1330},
      {"gemm fp8 precise", 1190},
      {"gemm fp8 row fast", 1270},
      {"gemm fp8 row precise", 1170},
      {"gemm fp8 1x128 128x128", 1060},
      {"gemm fp8 1x128 1x128", 890},
      {"attention_forward", 490},
      // Not measured within a step's skeleton. Forward: BF16's rate times the ratio of the burst rates, 960 / 620; steps of 8B
      // reach 727 to 756. Backward: the highest rate that a step of 8B reached.
      {"attention_forward_fp8", 759},
      {"attention_backward", 400},
      {"attention_backward_fp8", 524},
  };
  for (const Ceiling& c : kCeilings) {
    if (c.op == op) return c.teraflops * 1e12;
  }
  return 0;
}

// The copy rate of the GPU with this driver name, such as "NVIDIA H100 80GB HBM3". Any other GPU counts as an H200.
constexpr double copy_bytes_per_second(std::string_view gpu_name) {
  return gpu_name.find("H100") != std::string_view::npos ? kH100CopyBytesPerSecond : kH200CopyBytesPerSecond;
}

// The shortest time that this work can take on a GPU that copies at this rate, in bytes per second.
inline double floor_seconds(std::string_view op, const Work& work, double copy_rate) {
  const double flops = ceiling_flops(op);
  const double copy_s = work.bytes / copy_rate;
  // Many experts with few rows each are bound by their weights and gradients.
  if (flops > 0) return is_grouped(op) ? std::max(work.flops / flops, copy_s) : work.flops / flops;
  const bool sends = op == "all_gather" || op == "reduce_scatter" || op == "all_reduce" || op == "all_to_all";
  return sends ? work.bytes / kNvlinkBytesPerSecond : copy_s;
}

}  // namespace octet::app
