#include "octet/recipes/recipes.h"

namespace octet::recipes {

Recipe make_per_tensor(const Options& options, ScaleSource source) {
  Recipe recipe;
  recipe.compute = Compute::fp8;
  const QuantSpec spec{.format = Fp8Format::e4m3, .tile = ScaleTile::tensor, .source = source};
  recipe.x = recipe.w = recipe.g = spec;
  if (options.format == "hybrid") recipe.g.format = Fp8Format::e5m2;
  recipe.fprop = Accumulation::fast;
  set_accumulation(recipe, options);
  return recipe;
}

}  // namespace octet::recipes
