// Makes recipes by name. A recipe is data (numerics/recipe.h); each is a row of the table in registry.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octet/device/device.h"
#include "octet/numerics/recipe.h"

namespace octet::recipes {

// How each product of a linear layer accumulates on Hopper: auto | fast | precise. auto leaves it to the recipe.
struct AccumulationOptions {
  std::string fprop = "auto", dgrad = "auto", wgrad = "auto";
  bool operator==(const AccumulationOptions&) const = default;
};

// The settings of [precision] that affect a recipe.
struct Options {
  std::string format = "hybrid";           // hybrid | e4m3; only for recipes with one scale for each tensor
  int amax_history_len = 1024;             // steps; only for fp8_delayed
  std::string amax_compute_algo = "max";   // max | most_recent
  int margin = 0;
  std::string power_of_2 = "auto";         // auto | true | false; fp8_delayed and mxfp8 ignore it
  double amax_epsilon = 0.0;               // fp8_delayed and mxfp8 ignore it
  AccumulationOptions accumulation = {};
  std::string wgrad = "recipe";            // recipe | bf16
  std::string head = "bf16";               // bf16 | recipe
  std::string attention = "bf16";          // bf16 | fp8_forward | fp8; the latter two only with fp8_delayed
  bool weight_transpose_cache = true;
  std::vector<std::string> skip;           // globs of linear layers that stay in BF16
};

// The names of all recipes in alphabetical order: "bf16", "fp32", "fp8_block" and so on.
std::vector<std::string> recipe_names();

// Makes the recipe `name`. Throws Error{config} for an unknown name or option value and suggests the nearest name.
Recipe make_recipe(std::string_view name, const Options& options);

// The compute capability that is assumed where there is no GPU to ask: 9.0, Hopper.
inline constexpr int kHopper = 90;
// Whether GPUs of this compute capability (90 for 9.0) multiply operands with such scales.
bool has_instructions(int capability, ScaleTile tile);
// Whether GPUs of this compute capability multiply the recipe's operands. A GPU emulates "mxfp8" if it does not; no GPU
// emulates another recipe.
bool multiplies(int capability, const Recipe& recipe);
// Throws Error{config} if the device cannot run the recipe, and names the recipes that it can run. `capability` is that of the GPU; CPUs
// ignore it. `emulate` permits slow emulation.
void check_device(const Recipe& recipe, DeviceKind device, int capability, bool emulate);

// Returns the pattern for precision.skip that keeps this linear in BF16. The experts of a layer have one precision, so the pattern of
// an expert's linear is that of all experts: "layers.0.mlp.experts.*.down_proj".
std::string skip_pattern(std::string_view linear);

// Throws Error{config} that names the layer if the recipe cannot quantise a weight [out, in]: both dims must be multiples of 16.
void check_shape(const Recipe& recipe, std::string_view layer, std::int64_t out, std::int64_t in);

// The number of tokens of a pass must be a multiple of this, because the recipe's products on a GPU take so many rows at a time.
std::int64_t token_multiple(const Recipe& recipe);

// Returns how a linear layer computes: like the recipe, or in BF16 if a pattern of `skip` matches the layer. `parts` are the Hugging
// Face names of the modules that are fused in the layer. Throws Error{config} for a pattern that matches only some of them.
Compute compute_of(const Recipe& recipe, const std::vector<std::string>& parts);

// Throws Error{config} for the first pattern of `skip` that matches none of `layers`.
void check_skip_patterns(const Recipe& recipe, const std::vector<std::string>& layers);

}  // namespace octet::recipes
