// Rotary position embedding (Su et al., 2021), half-split as in Hugging Face: of the first R dims of a head of K, for i < R/2 and
// with angle = position * inv_freq[i],
//   y[i] = x[i] cos - x[i + R/2] sin,   y[i + R/2] = x[i + R/2] cos + x[i] sin;
// the others stay as they are (GPT-NeoX; of Llama R is K).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Llama 3.1's stretching of low frequencies: wavelengths beyond original / low_freq_factor are divided by `factor`, those below
// original / high_freq_factor kept, those between blended.
struct RopeScalingLlama3 {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position = 8192;
};

// inv_freq[i] = theta^(-2 i / R), scaled; R/2 values. Computed in FP32 as transformers does, so that angles agree with it.
std::vector<float> rope_inverse_frequencies(std::int64_t rotary_dim, double theta, const std::optional<RopeScalingLlama3>& scaling);

// cos and sin of position * inv_freq (product in FP32, then cos and sin) for positions [0, count): rows of cos then sin, [count, R] F32.
std::vector<float> rope_table(const std::vector<float>& inverse_frequencies, std::int64_t count);

struct Rope {
  Tensor x;          // [T, heads K] BF16, F32 or F64; rows may be strided; rotated in place; unspecified afterwards when `codes`
                     // are wanted
  std::int64_t rotated = 0;  // columns [0, rotated) are rotated, the rest (the values of packed QKV) kept; 0: all
  std::int64_t head_dim = 0;    // K
  std::int64_t rotary_dim = 0;  // R, even; 0: K
  Tensor table;      // [positions, R] F32: cos [R/2], sin [R/2]
  Tensor positions;  // [T] I32, each below the table's rows
  enum class Direction : std::uint8_t { forward, backward } direction = Direction::forward;  // backward: the inverse rotation
  QuantizeTo codes = {};  // of the whole result
};
void rope(Queue& queue, Arena& scratch, const Rope& op);

}  // namespace octet::kernels
