#include <algorithm>
#include <cmath>
#include <numbers>

#include "octet/kernels/rope/rope.h"

namespace octet::kernels {

// Every step is rounded to FP32 where Hugging Face transformers has FP32 tensors. torch's pow, cos and sin are reproduced by F64
// functions that are rounded once. pow agrees in every bit for the thetas of Llama; for theta = 1e6 one of 64 powers differs by
// an ulp. cos and sin agree to within 0.6 ulp.
namespace {

void scale(const RopeScalingLlama3& scaling, const std::vector<float>&, double, std::vector<float>& frequencies) {
  const float factor = static_cast<float>(scaling.factor);
  const float context = static_cast<float>(scaling.original_max_position);
  const float low = static_cast<float>(scaling.low_freq_factor);
  const float band = static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  const float longest = static_cast<float>(static_cast<double>(scaling.original_max_position) / scaling.low_freq_factor);
  const float shortest = static_cast<float>(static_cast<double>(scaling.original_max_position) / scaling.high_freq_factor);
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > longest) {
      frequency /= factor;
    } else if (wavelength >= shortest) {
      const float smooth = (context / wavelength - low) / band;
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

void scale(const RopeScalingLinear& scaling, const std::vector<float>&, double, std::vector<float>& frequencies) {
  for (float& frequency : frequencies) frequency /= static_cast<float>(scaling.factor);
}

void scale(const RopeScalingYarn& scaling, const std::vector<float>& periods, double theta, std::vector<float>& frequencies) {
  const double dims = 2.0 * static_cast<double>(frequencies.size());
  // The index of the frequency that turns so many times within the original length.
  const auto index_of = [&](double turns) {
    const double length = static_cast<double>(scaling.original_max_position);
    return dims * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = index_of(scaling.beta_fast), high = index_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float stretched = 1.0f / (static_cast<float>(scaling.factor) * periods[i]);
    frequencies[i] = stretched * (1.0f - kept) + frequencies[i] * kept;
  }
}

}  // namespace

std::vector<float> rope_inverse_frequencies(std::int64_t rotary_dim, double theta, const std::optional<RopeScaling>& scaling) {
  require(rotary_dim > 0 && rotary_dim % 2 == 0, "rope: rotary_dim must be even and positive, got ", rotary_dim);
  require(theta > 0, "rope: theta must be positive, got ", theta);
  std::vector<float> periods, result;
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    const double base = static_cast<double>(static_cast<float>(theta));
    periods.push_back(static_cast<float>(std::pow(base, static_cast<double>(exponent))));
    result.push_back(1.0f / periods.back());
  }
  if (scaling) std::visit([&](const auto& s) { scale(s, periods, theta, result); }, *scaling);
  return result;
}

std::vector<float> rope_table(std::int64_t rotary_dim, double theta, const std::optional<RopeScaling>& scaling,
                              std::int64_t count) {
  const std::vector<float> frequencies = rope_inverse_frequencies(rotary_dim, theta, scaling);
  const auto* const yarn = scaling ? std::get_if<RopeScalingYarn>(&*scaling) : nullptr;
  const float factor = yarn ? static_cast<float>(yarn->attention_factor) : 1.0f;
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(count * rotary_dim));
  for (std::int64_t position = 0; position < count; ++position) {
    const auto angle = [position](float frequency) { return static_cast<double>(static_cast<float>(position) * frequency); };
    for (const float frequency : frequencies) result.push_back(static_cast<float>(std::cos(angle(frequency))) * factor);
    for (const float frequency : frequencies) result.push_back(static_cast<float>(std::sin(angle(frequency))) * factor);
  }
  return result;
}

}  // namespace octet::kernels
