#include "octet/recipes/recipes.h"

namespace octet::recipes {

// Current scaling: one scale for each tensor, computed from the amax of the same tensor.
Recipe make_fp8_current(const Options& options) {
  Recipe recipe = make_per_tensor(options, ScaleSource::tensor);
  for (QuantSpec* spec : {&recipe.x, &recipe.w, &recipe.g}) {
    spec->power_of_2 = power_of_2(options, false);
    spec->epsilon = static_cast<float>(options.amax_epsilon);
  }
  return recipe;
}

}  // namespace octet::recipes
