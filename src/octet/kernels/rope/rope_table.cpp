#include <cmath>
#include <numbers>

#include "octet/kernels/rope/rope.h"

namespace octet::kernels {

// Every step is rounded to FP32 where Hugging Face transformers has FP32 tensors. torch's pow, cos and sin are reproduced by F64
// functions that are rounded once: pow with equal bits, cos and sin to within 0.6 ulp.
std::vector<float> rope_inverse_frequencies(std::int64_t rotary_dim, double theta,
                                            const std::optional<RopeScalingLlama3>& scaling) {
  require(rotary_dim > 0 && rotary_dim % 2 == 0, "rope: rotary_dim must be even and positive, got ", rotary_dim);
  require(theta > 0, "rope: theta must be positive, got ", theta);
  std::vector<float> result;
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    const double base = static_cast<double>(static_cast<float>(theta));
    result.push_back(1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent))));
  }
  if (!scaling) return result;

  const float factor = static_cast<float>(scaling->factor);
  const float context = static_cast<float>(scaling->original_max_position);
  const float low = static_cast<float>(scaling->low_freq_factor);
  const float band = static_cast<float>(scaling->high_freq_factor - scaling->low_freq_factor);
  const float longest = static_cast<float>(static_cast<double>(scaling->original_max_position) / scaling->low_freq_factor);
  const float shortest = static_cast<float>(static_cast<double>(scaling->original_max_position) / scaling->high_freq_factor);
  for (float& frequency : result) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > longest) {
      frequency /= factor;
    } else if (wavelength >= shortest) {
      const float smooth = (context / wavelength - low) / band;
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return result;
}

std::vector<float> rope_table(const std::vector<float>& inverse_frequencies, std::int64_t count) {
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(count) * 2 * inverse_frequencies.size());
  for (std::int64_t position = 0; position < count; ++position) {
    const auto angle = [position](float frequency) { return static_cast<double>(static_cast<float>(position) * frequency); };
    for (const float frequency : inverse_frequencies) result.push_back(static_cast<float>(std::cos(angle(frequency))));
    for (const float frequency : inverse_frequencies) result.push_back(static_cast<float>(std::sin(angle(frequency))));
  }
  return result;
}

}  // namespace octet::kernels
