// The makers behind the registry.
#pragma once

#include "octet/recipes/registry.h"

namespace octet::recipes {

Recipe make_fp32(const Options& options);
Recipe make_bf16(const Options& options);
Recipe make_fp8_delayed(const Options& options);
Recipe make_fp8_current(const Options& options);
Recipe make_fp8_rowwise(const Options& options);
Recipe make_fp8_block(const Options& options);
Recipe make_mxfp8(const Options& options);

// A per-tensor recipe's operands: E4M3 forward, and E5M2 (hybrid) or E4M3 backward; fast accumulation in fprop.
Recipe make_per_tensor(const Options& options, ScaleSource source);
// `automatic` unless the option says true or false.
bool power_of_2(const Options& options, bool automatic);
void set_accumulation(Recipe& recipe, const Options& options);

}  // namespace octet::recipes
