#include "octet/recipes/registry.h"

#include <algorithm>
#include <iterator>

#include "octet/base/names.h"
#include "octet/base/require.h"

namespace octet::recipes {
namespace {

// A row of the table of recipes. Activations and weights are E4M3. Gradients have the tiles of activations; they are E5M2 if
// there is one scale for each tensor and options.format is hybrid, otherwise E4M3.
struct Row {
  const char* name;
  Compute compute = Compute::fp8;
  ScaleTile x = {}, w = {};
  ScaleSource source = ScaleSource::tensor;
  bool power_of_2 = false;
  bool adjustable = false;  // options.power_of_2 and options.amax_epsilon apply
  Accumulation fprop = Accumulation::precise;
};

// In alphabetical order. Sources: DeepSeek-V3 technical report (2024), section 3.3, for fp8_block; Micikevicius et al., "FP8
// formats for deep learning" (2022), and DelayedScaling of Transformer Engine for fp8_delayed; OCP Microscaling Formats (MX)
// Specification 1.0 (2023) for mxfp8. fp32 is the reference; it runs only on the CPU.
constexpr Row kRecipes[] = {
    {.name = "bf16", .compute = Compute::bf16},
    {.name = "fp32", .compute = Compute::fp32},
    {.name = "fp8_block", .x = ScaleTile::block_1x128, .w = ScaleTile::block_128x128, .power_of_2 = true, .adjustable = true},
    {.name = "fp8_current", .x = ScaleTile::tensor, .w = ScaleTile::tensor, .adjustable = true, .fprop = Accumulation::fast},
    {.name = "fp8_delayed",
     .x = ScaleTile::tensor,
     .w = ScaleTile::tensor,
     .source = ScaleSource::history,
     .fprop = Accumulation::fast},
    {.name = "fp8_rowwise", .x = ScaleTile::row, .w = ScaleTile::row, .adjustable = true, .fprop = Accumulation::fast},
    {.name = "mxfp8", .x = ScaleTile::mx_1x32, .w = ScaleTile::mx_1x32, .power_of_2 = true},
};

Recipe make(const Row& row, const Options& options) {
  Recipe recipe{.name = row.name, .compute = row.compute};
  if (!recipe.is_fp8()) return recipe;
  QuantSpec spec{.format = Fp8Format::e4m3, .tile = row.x, .source = row.source, .power_of_2 = row.power_of_2};
  if (row.adjustable) {
    if (options.power_of_2 != "auto") spec.power_of_2 = options.power_of_2 == "true";
    spec.epsilon = static_cast<float>(options.amax_epsilon);
  }
  if (row.source == ScaleSource::history) {
    spec.margin = options.margin;
    recipe.amax_history_len = options.amax_history_len;
    recipe.amax_most_recent = options.amax_compute_algo == "most_recent";
  }
  recipe.x = recipe.w = recipe.g = spec;
  recipe.w.tile = row.w;
  if (row.x == ScaleTile::tensor && options.format == "hybrid") recipe.g.format = Fp8Format::e5m2;
  recipe.fprop = row.fprop;
  const auto accumulate = [](Accumulation& product, const std::string& option) {
    if (option != "auto") product = option == "fast" ? Accumulation::fast : Accumulation::precise;
  };
  accumulate(recipe.fprop, options.accumulation.fprop);
  accumulate(recipe.dgrad, options.accumulation.dgrad);
  accumulate(recipe.wgrad, options.accumulation.wgrad);
  return recipe;
}

// The compute capabilities whose tensor cores cuBLASLt uses for a tile of scales (cuBLAS 13, "Narrow Precision Data Types Usage").
struct TileSupport {
  ScaleTile tile;
  int first, last;
};
constexpr int kNewest = 1'000;
constexpr TileSupport kTiles[] = {{ScaleTile::tensor, 89, kNewest},
                                  {ScaleTile::row, 90, 90},
                                  {ScaleTile::block_1x128, 90, 90},
                                  {ScaleTile::block_128x128, 90, 90},
                                  {ScaleTile::mx_1x32, 100, kNewest}};
constexpr int kFirstWithBf16 = 80;

std::string capability_text(int capability) { return concat(capability / 10, ".", capability % 10); }

// "bf16, fp8_current or mxfp8"
std::string recipes_on(int capability) {
  std::vector<std::string> names;
  for (const Row& row : kRecipes) {
    if (row.compute != Compute::fp32 && multiplies(capability, make(row, {}))) names.emplace_back(row.name);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text.empty() ? "no recipe" : text;
}

void check_choice(const char* key, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  fail(ExitCode::config, "precision.", key, " = \"", value, "\": must be ", joined(choices, " | "), did_you_mean(value, choices));
}

}  // namespace

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Row& row : kRecipes) names.emplace_back(row.name);
  return names;
}

Recipe make_recipe(std::string_view name, const Options& options) {
  const auto row = std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const Row& known) { return known.name == name; });
  if (row == std::end(kRecipes)) {
    fail(ExitCode::config, "precision.recipe = \"", name, "\": no such recipe", did_you_mean(name, recipe_names()),
         "; there are ", joined(recipe_names()));
  }
  check_choice("format", options.format, {"hybrid", "e4m3"});
  check_choice("amax_compute_algo", options.amax_compute_algo, {"max", "most_recent"});
  check_choice("power_of_2", options.power_of_2, {"auto", "true", "false"});
  check_choice("accumulation.fprop", options.accumulation.fprop, {"auto", "fast", "precise"});
  check_choice("accumulation.dgrad", options.accumulation.dgrad, {"auto", "fast", "precise"});
  check_choice("accumulation.wgrad", options.accumulation.wgrad, {"auto", "fast", "precise"});
  check_choice("wgrad", options.wgrad, {"recipe", "bf16"});
  check_choice("head", options.head, {"bf16", "recipe"});
  check_choice("attention", options.attention, {"bf16", "fp8_forward", "fp8"});
  demand(options.amax_history_len >= 1, ExitCode::config, "precision.amax_history_len = ", options.amax_history_len,
         ": must be at least 1");
  demand(options.margin >= -32 && options.margin <= 32, ExitCode::config, "precision.margin = ", options.margin,
         ": must be between -32 and 32");
  demand(options.amax_epsilon >= 0.0 && options.amax_epsilon <= 1e30, ExitCode::config,
         "precision.amax_epsilon = ", options.amax_epsilon, ": must be between 0 and 1e30");
  Recipe recipe = make(*row, options);
  recipe.wgrad_bf16 = recipe.is_fp8() && options.wgrad == "bf16";
  recipe.head_fp8 = recipe.is_fp8() && options.head == "recipe";
  if (options.attention == "fp8_forward") recipe.attention = AttentionPrecision::fp8_forward;
  if (options.attention == "fp8") recipe.attention = AttentionPrecision::fp8;
  demand(recipe.attention == AttentionPrecision::bf16 || recipe.delayed(), ExitCode::config, "precision.attention = \"",
         options.attention, "\" with precision.recipe = \"", name,
         "\": attention in FP8 has delayed scales, which only fp8_delayed keeps; use that recipe, or precision.attention = \"bf16\"");
  recipe.weight_transpose_cache = options.weight_transpose_cache;
  demand(!recipe.is_fp8() || recipe.weight_transpose_cache || recipe.w.tile == ScaleTile::tensor ||
             recipe.w.tile == ScaleTile::block_128x128,
         ExitCode::config, "precision.weight_transpose_cache = false: ", name,
         " scales the rows and the columns of a weight separately, so its transposed codes cannot be made from its codes");
  recipe.skip = options.skip;
  return recipe;
}

bool has_instructions(int capability, ScaleTile tile) {
  return std::any_of(std::begin(kTiles), std::end(kTiles), [&](const TileSupport& support) {
    return support.tile == tile && support.first <= capability && capability <= support.last;
  });
}

bool multiplies(int capability, const Recipe& recipe) {
  if (!recipe.is_fp8()) return capability >= kFirstWithBf16;
  return has_instructions(capability, recipe.x.tile) && has_instructions(capability, recipe.w.tile) &&
         has_instructions(capability, recipe.g.tile);
}

void check_device(const Recipe& recipe, DeviceKind device, int capability, bool emulate) {
  if (device != DeviceKind::cuda) return;
  demand(recipe.compute != Compute::fp32, ExitCode::config,
         "precision.recipe = \"fp32\" runs on the CPU only; use bf16 on a GPU");
  demand(recipe.attention == AttentionPrecision::bf16 || capability >= kHopper, ExitCode::config, "precision.attention = \"",
         name_of(recipe.attention), "\": cuDNN has no attention in FP8 for a GPU of compute capability ",
         capability_text(capability), ", only from ", capability_text(kHopper), " on; use precision.attention = \"bf16\"");
  if (multiplies(capability, recipe)) return;
  const bool emulated = recipe.is_fp8() && recipe.x.tile == ScaleTile::mx_1x32 && capability >= kFirstWithBf16;
  demand(emulated && emulate, ExitCode::config, "precision.recipe = \"", recipe.name, "\": a GPU of compute capability ",
         capability_text(capability), " has no instructions for it", emulated ? "; precision.emulate = true runs it slowly" : "",
         "; the GPU can run ", recipes_on(capability));
}

std::string skip_pattern(std::string_view linear) {
  constexpr std::string_view kExperts = ".experts.";
  std::string pattern(linear);
  const std::size_t at = pattern.find(kExperts), number = at + kExperts.size();
  if (at == std::string::npos) return pattern;
  return pattern.replace(number, pattern.find('.', number) - number, "*");
}

namespace {

// Returns the pattern of this linear in all layers: every number in the name becomes "*".
std::string pattern_in_all_layers(std::string_view linear) {
  std::string pattern;
  for (std::size_t at = 0; at <= linear.size();) {
    const std::size_t end = std::min(linear.find('.', at), linear.size());
    const std::string_view part = linear.substr(at, end - at);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    pattern += concat(at == 0 ? "" : ".", is_number ? "*" : part);
    at = end + 1;
  }
  return pattern;
}

}  // namespace

void check_shape(const Recipe& recipe, std::string_view layer, std::int64_t out, std::int64_t in) {
  if (!recipe.is_fp8()) return;
  const std::string pattern = pattern_in_all_layers(layer);  // the same linear of another layer would be refused next
  demand(out % 16 == 0 && in % 16 == 0, ExitCode::config, layer, ": a weight [", out, ", ", in, "] cannot be quantised by ",
         recipe.name, ": both dims must be multiples of 16 (precision.skip = [\"", pattern, "\"] keeps ",
         pattern == layer ? "it" : "this linear of all layers", " in BF16)");
}

std::int64_t token_multiple(const Recipe& recipe) { return recipe.is_fp8() && is_block(recipe.x.tile) ? 4 : 1; }

Compute compute_of(const Recipe& recipe, const std::vector<std::string>& parts) {
  if (!recipe.is_fp8()) return recipe.compute;
  Compute compute = Compute::fp8;
  for (const std::string& pattern : recipe.skip) {
    std::size_t matched = 0;
    std::string other;
    for (const std::string& part : parts) {
      if (glob_match(pattern, part)) {
        ++matched;
      } else {
        other = part;
      }
    }
    if (parts.size() > 1 && glob_match(pattern, parts.front() + ".fused")) matched = parts.size();
    demand(matched == 0 || matched == parts.size(), ExitCode::config, "precision.skip: \"", pattern, "\" matches a part of ",
           parts.front(), ".fused but not ", other, "; a fused linear is kept in BF16 whole or not at all");
    if (matched > 0) compute = Compute::bf16;  // continues, to check the other patterns too
  }
  return compute;
}

void check_skip_patterns(const Recipe& recipe, const std::vector<std::string>& layers) {
  for (const std::string& pattern : recipe.skip) {
    const bool used =
        std::any_of(layers.begin(), layers.end(), [&](const std::string& name) { return glob_match(pattern, name); });
    demand(used, ExitCode::config, "precision.skip: \"", pattern, "\" matches no linear layer", did_you_mean(pattern, layers));
  }
}

}  // namespace octet::recipes
