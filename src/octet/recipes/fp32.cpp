#include "octet/recipes/recipes.h"

namespace octet::recipes {

// FP32 weights, activations and products: the reference. It runs only on the CPU.
Recipe make_fp32(const Options&) {
  Recipe recipe;
  recipe.compute = Compute::fp32;
  return recipe;
}

}  // namespace octet::recipes
