#include "octet/recipes/recipes.h"

namespace octet::recipes {

// 32 elements to an E8M0 scale (OCP Microscaling Formats, 2023).
Recipe make_mxfp8(const Options& options) {
  Recipe recipe;
  recipe.compute = Compute::fp8;
  recipe.x = recipe.w = recipe.g = {
      .format = Fp8Format::e4m3, .tile = ScaleTile::mx_1x32, .source = ScaleSource::tensor, .power_of_2 = true};
  set_accumulation(recipe, options);
  return recipe;
}

}  // namespace octet::recipes
