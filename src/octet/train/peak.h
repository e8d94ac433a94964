// What GPUs can do at most, for MFU.
#pragma once

#include <optional>
#include <string_view>

namespace octet::train {

// Dense products, operations per second of the data sheet.
struct Peak {
  double bf16_flops, fp8_flops;

  // Where `fp8_share` of the operations are in FP8: as if each part ran at its own peak, one after the other.
  double mixed_flops(double fp8_share) const { return 1 / (fp8_share / fp8_flops + (1 - fp8_share) / bf16_flops); }
};

inline constexpr Peak kHopperPeak{.bf16_flops = 989e12, .fp8_flops = 1979e12};  // H100 SXM, H200 SXM, GH200

// By the name that the driver gives a GPU, as "NVIDIA H100 80GB HBM3". Of Hopper's SXM modules; the cards, which are slower, and
// other GPUs are not known.
std::optional<Peak> peak_of(std::string_view gpu_name);

}  // namespace octet::train
