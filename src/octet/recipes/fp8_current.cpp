#include "octet/recipes/recipes.h"

namespace octet::recipes {

// One scale per tensor, from the tensor itself.
Recipe make_fp8_current(const Options& options) {
  Recipe recipe = make_per_tensor(options, ScaleSource::tensor);
  for (QuantSpec* spec : {&recipe.x, &recipe.w, &recipe.g}) {
    spec->power_of_2 = power_of_2(options, false);
    spec->epsilon = static_cast<float>(options.amax_epsilon);
  }
  return recipe;
}

}  // namespace octet::recipes
