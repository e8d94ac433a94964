// The functions that make the recipes, and their common parts. Use make_recipe() in registry.h to call them.
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

// The common part of recipes with one scale for each tensor. Activations and weights are E4M3; gradients are E5M2 if options.format is
// hybrid, otherwise E4M3. fprop accumulates fast unless options.accumulation says otherwise.
Recipe make_per_tensor(const Options& options, ScaleSource source);
// Whether scales are powers of 2: options.power_of_2, or `automatic` if the option is auto.
bool power_of_2(const Options& options, bool automatic);
// Applies options.accumulation to the three GEMMs, except where it is auto.
void set_accumulation(Recipe& recipe, const Options& options);

}  // namespace octet::recipes
