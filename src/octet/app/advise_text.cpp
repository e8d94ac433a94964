// Prints the advice of `octet advise`, for people and for programs.
#include <fmt/format.h>

#include <algorithm>

#include "octet/app/advise.h"
#include "octet/base/json.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

// The cost of a linear of kind `i`, predicted or measured.
struct Cost {
  double products_s, casts_s, total_s, gain_pct;

  Cost(const std::vector<plan::LinearTime>& times, const std::vector<plan::LinearTime>& bf16, std::size_t i)
      : products_s(times[i].products_s),
        casts_s(plan::casts_seconds(times[i], bf16[i])),
        total_s(plan::total_seconds(times[i], bf16[i])),
        gain_pct(plan::gain_pct(total_s, bf16[i].products_s)) {}
};

bool has_row(const plan::LinearKind& kind, const AdvisedRecipe& recipe) {
  return recipe.refusal.empty() && (kind.quantisable || recipe.name == "bf16");
}

std::string cost_text(const Cost& cost) {
  return fmt::format("{:>10.1f}{:>8.1f}{:>10.1f}{:>+9.1f}%", cost.products_s * 1e6, cost.casts_s * 1e6, cost.total_s * 1e6,
                     cost.gain_pct);
}

Json cost_json(const Cost& cost) {
  return {{"products_s", cost.products_s}, {"casts_s", cost.casts_s}, {"total_s", cost.total_s}, {"gain_pct", cost.gain_pct}};
}

plan::Outcome outcome_of(const Advice& advice, const AdvisedRecipe& recipe) {
  return plan::outcome_of(advice.kinds, recipe.candidate(), advice.recipes.front().candidate());
}

std::size_t name_width(const Advice& advice) {
  std::size_t width = 9;
  for (const plan::LinearKind& kind : advice.kinds) width = std::max(width, kind.name.size() + 2);
  return width;
}

std::string experts_text(const Advice& advice) {
  for (const plan::LinearKind& kind : advice.kinds) {
    if (kind.experts == 0) continue;
    return concat("A row of experts has the times of all ", kind.experts,
                  " experts of a layer, if each gets the same number of rows.\n");
  }
  return "";
}

std::string linears_text(const Advice& advice) {
  const AdvisedRecipe& bf16 = advice.recipes.front();
  const std::size_t width = name_width(advice);
  constexpr const char* kColumns = "  products   casts     total      gain";
  std::string text =
      fmt::format("microseconds of one linear and one micro-batch\n{:<{}}{:<38}{}\n{:<{}}{:<38}{}{}\n", "", width + 38,
                  "  predicted for an H200", bf16.measured.empty() ? "" : "  measured on " + advice.gpu, "linear", width,
                  "[out, in]           layers  recipe", kColumns, bf16.measured.empty() ? "" : kColumns);
  for (std::size_t i = 0; i < advice.kinds.size(); ++i) {
    const plan::LinearKind& kind = advice.kinds[i];
    std::string label =
        fmt::format("{:<{}}{:<20}{:>6}", kind.name, width,
                    concat(kind.experts > 0 ? concat(kind.experts, " x ") : "", "[", kind.out, ", ", kind.in, "]"), kind.layers);
    for (const AdvisedRecipe& recipe : advice.recipes) {
      if (!has_row(kind, recipe)) continue;
      text += fmt::format("{:<{}}  {:<10}{}", label, width + 26, recipe.name, cost_text({recipe.predicted, bf16.predicted, i}));
      if (!recipe.measured.empty()) text += cost_text({recipe.measured, bf16.measured, i});
      text += "\n";
      label.clear();
    }
  }
  return text;
}

std::string recipes_text(const Advice& advice) {
  std::string text = fmt::format("\n{:<13}{:>20}{:>12}{:>20}{:>12}{:>12}\n", "recipe", "ms a micro-batch", "gain",
                                 "with advised skip", "gain", "memory");
  for (const AdvisedRecipe& recipe : advice.recipes) {
    if (!recipe.refusal.empty()) {
      text += fmt::format("{:<13}    refused: {}\n", recipe.name, recipe.refusal);
      continue;
    }
    const plan::Outcome outcome = outcome_of(advice, recipe);
    text += fmt::format("{:<13}{:>20.3f}{:>+11.1f}%{:>20.3f}{:>+11.1f}%{:>12}", recipe.name, outcome.as_is.seconds * 1e3,
                        outcome.as_is.gain_pct, outcome.advised.seconds * 1e3, outcome.advised.gain_pct,
                        telemetry::format_bytes(recipe.memory_bytes));
    if (recipe.memory_bytes > advice.gpu_memory_bytes) {
      text += fmt::format("  more than the GPU's {}", telemetry::format_bytes(advice.gpu_memory_bytes));
    }
    text += "\n";
  }
  return text + experts_text(advice) +
         concat("Times cover linear layers only; everything else costs the same in every recipe. The head is counted in ",
                advice.head == "recipe" ? "the recipe" : "BF16",
                " (precision.head).\nmxfp8 is emulated on Hopper, slower than BF16, and so not listed.\n");
}

// For each kind of linear, the recipes that are slower than BF16 on it.
std::string slower_text(const Advice& advice) {
  std::string text;
  for (const plan::LinearKind& kind : advice.kinds) {
    std::string losers;
    for (const AdvisedRecipe& recipe : advice.recipes) {
      if (!recipe.refusal.empty()) continue;
      const std::vector<std::string> slower = outcome_of(advice, recipe).slower;
      if (std::find(slower.begin(), slower.end(), kind.pattern) != slower.end()) losers += " " + recipe.name;
    }
    if (!losers.empty())
      text += fmt::format("  {:<{}}precision.skip = [\"{}\"]  with{}\n", kind.name, name_width(advice), kind.pattern, losers);
  }
  return text.empty() ? text : "\nlinears that FP8 makes slower than BF16: advised to skip\n" + text;
}

std::string health_text(const Advice& advice) {
  if (!advice.health) return "";
  std::string text = fmt::format("\nhealth, medians of {}\n", *advice.health);
  // The experts of a layer share a pattern. For each figure, the worst of them speaks.
  struct Line {
    std::string advised;
    telemetry::HealthFinding worst;
    int experts = 1;
  };
  std::vector<Line> lines;
  for (const telemetry::HealthFinding& f : advice.findings) {
    const bool watched = f.concern == telemetry::Concern::watch;
    const std::string advised = watched ? "watch " + f.layer : "keep " + recipes::skip_pattern(f.layer) + " in BF16";
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.advised == advised && line.worst.operand == f.operand && line.worst.figure == f.figure;
    });
    if (same == lines.end()) {
      lines.push_back({advised, f});
      continue;
    }
    ++same->experts;
    if (std::abs(f.value - f.limit) > std::abs(same->worst.value - same->worst.limit)) same->worst = f;
  }
  for (const Line& line : lines) {
    text += fmt::format("  {}: {}{}\n", line.advised, telemetry::sentence_of(line.worst),
                        line.experts > 1 ? fmt::format(", in the worst of {} experts", line.experts) : "");
  }
  return advice.findings.empty() ? text + "  every layer is well represented\n" : text;
}

Json recipe_json(const Advice& advice, const AdvisedRecipe& recipe) {
  if (!recipe.refusal.empty()) return {{"recipe", recipe.name}, {"refused", recipe.refusal}};
  const plan::Outcome outcome = outcome_of(advice, recipe);
  return {{"recipe", recipe.name},
          {"seconds", outcome.as_is.seconds},
          {"gain_pct", outcome.as_is.gain_pct},
          {"advised_seconds", outcome.advised.seconds},
          {"advised_gain_pct", outcome.advised.gain_pct},
          {"slower", outcome.slower},
          {"memory_bytes", recipe.memory_bytes}};
}

Json linear_json(const Advice& advice, std::size_t i) {
  const plan::LinearKind& kind = advice.kinds[i];
  const AdvisedRecipe& bf16 = advice.recipes.front();
  Json recipes = Json::array();
  for (const AdvisedRecipe& recipe : advice.recipes) {
    if (!has_row(kind, recipe)) continue;
    Json entry = {{"recipe", recipe.name},
                  {"layers", recipe.fp8_layers[i]},
                  {"predicted", cost_json({recipe.predicted, bf16.predicted, i})}};
    if (!recipe.measured.empty()) entry["measured"] = cost_json({recipe.measured, bf16.measured, i});
    recipes.push_back(entry);
  }
  return {{"name", kind.name},     {"pattern", kind.pattern}, {"out", kind.out},   {"in", kind.in},
          {"layers", kind.layers}, {"experts", kind.experts}, {"recipes", recipes}};
}

}  // namespace

std::string advice_text(const Advice& advice) {
  const plan::LinearSetting& setting = advice.setting;
  std::string text = fmt::format("{}: micro-batches of {} x {} tokens, {} to a step\n", advice.run, setting.batch,
                                 setting.seq_len, setting.micro_batches);
  text += linears_text(advice) + recipes_text(advice) + slower_text(advice) + health_text(advice);
  return text + fmt::format("\nadvice: {}\n\n{}", advice.recommendation.reason, advice.recommendation.toml);
}

std::string advice_json(const Advice& advice) {
  const plan::LinearSetting& setting = advice.setting;
  Json linears = Json::array(), recipes = Json::array(), health = Json::array();
  for (std::size_t i = 0; i < advice.kinds.size(); ++i) linears.push_back(linear_json(advice, i));
  for (const AdvisedRecipe& recipe : advice.recipes) recipes.push_back(recipe_json(advice, recipe));
  for (const telemetry::HealthFinding& f : advice.findings) {
    health.push_back({{"layer", f.layer},
                      {"operand", std::string(1, f.operand)},
                      {"figure", f.figure},
                      {"unit", f.unit},
                      {"value", f.value},
                      {"limit", f.limit},
                      {"step", f.step > 0 ? Json(f.step) : Json(nullptr)},
                      {"concern", f.concern == telemetry::Concern::danger ? "danger" : "watch"},
                      {"source", f.source}});
  }
  const plan::Recommendation& r = advice.recommendation;
  const Json result = {{"run", advice.run},
                       {"gpu", advice.gpu},
                       {"micro_batch_size", setting.batch},
                       {"seq_len", setting.seq_len},
                       {"micro_batches", setting.micro_batches},
                       {"linears", linears},
                       {"recipes", recipes},
                       {"health", health},
                       {"recommendation", {{"recipe", r.recipe}, {"skip", r.skip}, {"reason", r.reason}, {"toml", r.toml}}}};
  return result.dump(2) + "\n";
}

}  // namespace octet::app
