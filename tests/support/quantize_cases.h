// Inputs for the tests of quantization on the CPU and on GPUs: values that exercise each of its rules, and specs.
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

// The value of element i of `count`.
double fill_value(Fill fill, std::int64_t i, std::int64_t count);

std::vector<QuantSpec> quant_specs();
// The specs of weights, which are cast in shards.
std::vector<QuantSpec> weight_specs();

std::string case_name(const QuantSpec& spec, const Shape& shape, DType dtype, Fill fill);

}  // namespace octet::testing
