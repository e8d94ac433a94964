#include "octet/recipes/recipes.h"

namespace octet::recipes {

// One scale per tensor, from the largest magnitudes of earlier steps (Micikevicius et al., 2022; Transformer Engine's DelayedScaling).
Recipe make_fp8_delayed(const Options& options) {
  Recipe recipe = make_per_tensor(options, ScaleSource::history);
  for (QuantSpec* spec : {&recipe.x, &recipe.w, &recipe.g}) spec->margin = options.margin;
  recipe.amax_history_len = options.amax_history_len;
  recipe.amax_most_recent = options.amax_compute_algo == "most_recent";
  return recipe;
}

}  // namespace octet::recipes
