#include "octet/recipes/recipes.h"

namespace octet::recipes {

// Block scaling: one scale for each 1x128 tile of activations and gradients and each 128x128 tile of weights. Source: DeepSeek-V3
// technical report (2024), section 3.3.
Recipe make_fp8_block(const Options& options) {
  Recipe recipe;
  recipe.compute = Compute::fp8;
  recipe.x = recipe.g = {.format = Fp8Format::e4m3,
                         .tile = ScaleTile::block_1x128,
                         .source = ScaleSource::tensor,
                         .power_of_2 = power_of_2(options, true),
                         .epsilon = static_cast<float>(options.amax_epsilon)};
  recipe.w = recipe.x;
  recipe.w.tile = ScaleTile::block_128x128;
  set_accumulation(recipe, options);
  return recipe;
}

}  // namespace octet::recipes
