// Every recipe by name. A recipe is data (numerics/recipe.h); one file here makes each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octet/device/device.h"
#include "octet/numerics/recipe.h"

namespace octet::recipes {

// The [precision] settings that shape a recipe.
struct Options {
  std::string format = "hybrid";           // hybrid | e4m3; per-tensor recipes
  int amax_history_len = 1024;
  std::string amax_compute_algo = "max";   // max | most_recent
  int margin = 0;
  std::string power_of_2 = "auto";         // auto | true | false; fp8_delayed ignores it
  double amax_epsilon = 0.0;               // fp8_delayed ignores it
  std::string accumulation = "auto";       // auto | fast | precise
  std::string wgrad = "recipe";            // recipe | bf16
  std::string head = "bf16";               // bf16 | recipe
  bool weight_transpose_cache = true;
  std::vector<std::string> skip;
};

// "bf16", "fp8_block", "fp8_current", ... in alphabetical order.
std::vector<std::string> recipe_names();

// Throws Error{config} for an unknown name or option value, with the nearest name.
Recipe make_recipe(std::string_view name, const Options& options);

// Throws Error{config} where the device has no path for the recipe (and `emulate` does not ask for a slow one).
void check_device(const Recipe& recipe, DeviceKind device, bool emulate);

// Throws Error{config}, naming the layer, when the recipe cannot quantise a weight [out, in]: dims are multiples of 16.
void check_shape(const Recipe& recipe, std::string_view layer, std::int64_t out, std::int64_t in);

// How one linear computes: the recipe's compute, or BF16 for a layer that `skip` names.
// `parts` are the Hugging Face module names fused in the layer; a pattern that matches only some of them is refused.
Compute compute_of(const Recipe& recipe, const std::vector<std::string>& parts);

// Throws Error{config} for the first skip pattern that matches none of `layers`.
void check_skip_patterns(const Recipe& recipe, const std::vector<std::string>& layers);

}  // namespace octet::recipes
