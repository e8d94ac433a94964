#include "octet/recipes/recipes.h"

namespace octet::recipes {

// BF16 operands with FP32 accumulation. FP8 recipes are compared with this recipe.
Recipe make_bf16(const Options&) {
  Recipe recipe;
  recipe.compute = Compute::bf16;
  return recipe;
}

}  // namespace octet::recipes
