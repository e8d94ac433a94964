#include "octet/recipes/recipes.h"

namespace octet::recipes {

// Delayed scaling: one scale for each tensor, computed from the amaxes of earlier steps. Sources: Micikevicius et al., "FP8 formats for
// deep learning" (2022); DelayedScaling of Transformer Engine.
Recipe make_fp8_delayed(const Options& options) {
  Recipe recipe = make_per_tensor(options, ScaleSource::history);
  for (QuantSpec* spec : {&recipe.x, &recipe.w, &recipe.g}) spec->margin = options.margin;
  recipe.amax_history_len = options.amax_history_len;
  recipe.amax_most_recent = options.amax_compute_algo == "most_recent";
  return recipe;
}

}  // namespace octet::recipes
