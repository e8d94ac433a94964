#include "octet/recipes/recipes.h"

namespace octet::recipes {

// MXFP8: one E8M0 scale for 32 elements. Source: OCP Microscaling Formats (MX) Specification 1.0 (2023).
Recipe make_mxfp8(const Options& options) {
  Recipe recipe;
  recipe.compute = Compute::fp8;
  recipe.x = recipe.w = recipe.g = {
      .format = Fp8Format::e4m3, .tile = ScaleTile::mx_1x32, .source = ScaleSource::tensor, .power_of_2 = true};
  set_accumulation(recipe, options);
  return recipe;
}

}  // namespace octet::recipes
