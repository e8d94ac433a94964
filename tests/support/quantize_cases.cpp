#include "support/quantize_cases.h"

namespace octet::testing {

double fill_value(Fill fill, std::int64_t i, std::int64_t count) {
  const Rng rng(13, RngStream::test, static_cast<std::uint32_t>(fill));
  const auto at = static_cast<std::uint64_t>(i);
  const double normal = rng.normal(at), largest = static_cast<double>(std::numeric_limits<float>::max());
  switch (fill) {
    case Fill::normal:
      return normal;
    case Fill::wide:
      return std::ldexp(normal, static_cast<int>(rng.word64(at) % 240) - 120);
    case Fill::zero:
      return i % 2 ? -0.0 : 0.0;
    case Fill::tiny:
      return normal * 1e-39;
    case Fill::huge_element:
      return i == (count - 1) / 3 ? 1e30 : normal;
    case Fill::infinite:
      return i % 97 == 5 ? -HUGE_VAL : i % 61 == 3 ? largest : normal;
    // Only the last element is infinite. The shards without it are finite, but their scales come from the amax of all shards. They have
    // values far above (3e38) and just above (500) the maximum of E4M3.
    case Fill::infinite_at_the_end:
      return i == count - 1 ? -HUGE_VAL : i % 7 == 1 && i < count / 2 ? 3e38 : i % 5 == 1 ? -500.0 : normal;
    case Fill::nan:
      return i % 1211 == 17 ? std::nan("") : i % 89 == 3 ? HUGE_VAL : normal;
    case Fill::every_pattern:
      return static_cast<double>(static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(at * 40503u))));
  }
  return 0;
}

std::vector<QuantSpec> quant_specs() {
  std::vector<QuantSpec> all = {{.tile = ScaleTile::tensor, .source = ScaleSource::history},
                                {.format = Fp8Format::e5m2, .tile = ScaleTile::tensor, .source = ScaleSource::history},
                                {.format = Fp8Format::e5m2, .tile = ScaleTile::block_1x128, .epsilon = 0.5f},
                                {.tile = ScaleTile::mx_1x32}};
  for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_1x128, ScaleTile::block_128x128}) {
    all.push_back({.tile = tile});
    all.push_back({.format = Fp8Format::e5m2, .tile = tile});
    all.push_back({.tile = tile, .power_of_2 = true});
    all.push_back({.format = Fp8Format::e5m2, .tile = tile, .power_of_2 = true, .epsilon = 2.5f});
  }
  return all;
}

std::vector<QuantSpec> weight_specs() {
  std::vector<QuantSpec> all = quant_specs();
  std::erase_if(all, [](const QuantSpec& spec) { return spec.tile == ScaleTile::block_1x128; });
  return all;
}

std::string case_name(const QuantSpec& spec, const Shape& shape, DType dtype, Fill fill) {
  return concat("tile ", static_cast<int>(spec.tile), " format ", static_cast<int>(spec.format), " of ", shape, " ",
                name_of(dtype), " fill ", static_cast<int>(fill));
}

}  // namespace octet::testing
