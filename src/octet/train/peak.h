// The peak speed of GPUs, for MFU.
#pragma once

#include <optional>
#include <string_view>

namespace octet::train {

// Dense operations per second, from NVIDIA's data sheets.
struct Peak {
  double bf16_flops, fp8_flops;

  // The peak of a mixture in which the fraction `fp8_share` of the operations is FP8 and each part runs at its own peak, one after the
  // other.
  double mixed_flops(double fp8_share) const { return 1 / (fp8_share / fp8_flops + (1 - fp8_share) / bf16_flops); }
};

inline constexpr Peak kHopperPeak{.bf16_flops = 989e12, .fp8_flops = 1979e12};  // H100 SXM, H200 SXM, GH200

// Returns the peak for the driver's name of a GPU, such as "NVIDIA H100 80GB HBM3". Knows only H100 and H200 SXM modules. Returns nothing
// for other GPUs and for the slower PCIe and NVL cards.
std::optional<Peak> peak_of(std::string_view gpu_name);

}  // namespace octet::train
