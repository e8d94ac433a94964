// Rotary position embedding (Su et al., 2021) with split halves, as in Hugging Face. It rotates the first R of a head's K dims.
// For i < R/2 and angle = position * inv_freq[i]:
//   y[i] = x[i] cos - x[i + R/2] sin,   y[i + R/2] = x[i + R/2] cos + x[i] sin.
// The other dims keep their values. Llama has R = K; GPT-NeoX has R <= K.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Llama 3.1's scaling of low frequencies. Frequencies with wavelengths above original / low_freq_factor are divided by `factor`.
// Frequencies with wavelengths below original / high_freq_factor are kept. In between, the two are interpolated.
struct RopeScalingLlama3 {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position = 8192;
  bool operator==(const RopeScalingLlama3&) const = default;
};

// All frequencies are divided by `factor` (Chen et al., Position Interpolation, 2023).
struct RopeScalingLinear {
  double factor = 1.0;
  bool operator==(const RopeScalingLinear&) const = default;
};

// YaRN (Peng et al., 2023). A frequency that turns more than beta_fast times within the original length is kept, one that turns
// less than beta_slow times is divided by `factor`, and between them the two are interpolated. All of cos and sin is multiplied
// by attention_factor, which makes attention sharper.
struct RopeScalingYarn {
  double factor = 1.0;
  std::int64_t original_max_position = 32768;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;  // the first and the last interpolated frequency are rounded outwards to whole numbers
  double attention_factor = 1.0;
  bool operator==(const RopeScalingYarn&) const = default;
};

using RopeScaling = std::variant<RopeScalingLlama3, RopeScalingLinear, RopeScalingYarn>;

// inv_freq[i] = theta^(-2 i / R), scaled; R/2 values. Computed in FP32
// in the way of Hugging Face transformers, so that angles agree.
std::vector<float> rope_inverse_frequencies(std::int64_t rotary_dim, double theta, const std::optional<RopeScaling>& scaling);

// The table of cos and sin of position * inv_freq for positions [0, count): [count, R] F32, each row R/2 cos, then R/2 sin, times
// the attention factor of YaRN. The products are computed in FP32.
std::vector<float> rope_table(std::int64_t rotary_dim, double theta, const std::optional<RopeScaling>& scaling,
                              std::int64_t count);

struct Rope {
  Tensor x;                     // [T, heads K] BF16, F32 or F64; rows may be strided; rotated in place. With `codes`, its content
                                // afterwards is unspecified
  std::int64_t rotated = 0;     // columns [0, rotated) are rotated, the others (V of packed QKV) keep their values; 0: all
  std::int64_t head_dim = 0;    // K
  std::int64_t rotary_dim = 0;  // R, even; 0: K
  Tensor table;                 // [positions, R] F32: cos [R/2], sin [R/2]
  Tensor positions;             // [T] I32, each below the table's rows
  enum class Direction : std::uint8_t { forward, backward } direction = Direction::forward;  // backward: the inverse rotation
  QuantizeEpilogue codes = {};  // optional: receives all columns of the result, quantised
};
void rope(Stream& stream, Arena& scratch, const Rope& op);

}  // namespace octet::kernels
