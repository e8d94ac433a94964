#include "octet/recipes/recipes.h"

namespace octet::recipes {

// BF16 operands, FP32 accumulation: the yardstick.
Recipe make_bf16(const Options&) {
  Recipe recipe;
  recipe.compute = Compute::bf16;
  return recipe;
}

}  // namespace octet::recipes
