#include "octet/recipes/recipes.h"

namespace octet::recipes {

// Rowwise scaling: one scale for each row of an operand. A row extends along the dim that the GEMM sums over.
Recipe make_fp8_rowwise(const Options& options) {
  Recipe recipe;
  recipe.compute = Compute::fp8;
  recipe.x = recipe.w = recipe.g = {.format = Fp8Format::e4m3,
                                    .tile = ScaleTile::row,
                                    .source = ScaleSource::tensor,
                                    .power_of_2 = power_of_2(options, false),
                                    .epsilon = static_cast<float>(options.amax_epsilon)};
  recipe.fprop = Accumulation::fast;
  set_accumulation(recipe, options);
  return recipe;
}

}  // namespace octet::recipes
