// Inputs for the tests of quantization on the CPU and on GPUs: specs, and values that exercise every rule.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "octet/base/require.h"
#include "octet/base/rng.h"
#include "octet/numerics/bfloat16.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet::testing {

enum class Fill : std::uint8_t { normal, wide, zero, tiny, huge_element, infinite, infinite_at_the_end, nan, every_pattern };
inline constexpr Fill kFills[] = {
    Fill::normal, Fill::wide,         Fill::zero, Fill::tiny, Fill::huge_element, Fill::infinite, Fill::infinite_at_the_end,
    Fill::nan,    Fill::every_pattern};

// Returns element i of `count` elements.
double fill_value(Fill fill, std::int64_t i, std::int64_t count);

std::vector<QuantSpec> quant_specs();
// Returns the specs of weights, which are quantised in shards.
std::vector<QuantSpec> weight_specs();

std::string case_name(const QuantSpec& spec, const Shape& shape, DType dtype, Fill fill);

}  // namespace octet::testing
