#include "octet/recipes/recipes.h"

namespace octet::recipes {

// Weights, activations and products in FP32: the reference, on the CPU.
Recipe make_fp32(const Options&) {
  Recipe recipe;
  recipe.compute = Compute::fp32;
  return recipe;
}

}  // namespace octet::recipes
