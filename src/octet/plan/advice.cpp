#include "octet/plan/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/telemetry/format.h"

namespace octet::plan {
namespace {

std::int64_t matches(const LinearKind& kind, const std::vector<std::string>& names) {
  return std::count_if(names.begin(), names.end(), [&](const std::string& name) { return glob_match(kind.pattern, name); });
}

// Returns `patterns` and the entries that `names` needs in addition: the pattern of a kind if `names` holds all its layers, otherwise the
// single names.
std::vector<std::string> extended(const std::vector<LinearKind>& kinds, std::vector<std::string> patterns,
                                  const std::vector<std::string>& names) {
  const auto add = [&](const std::string& name) {
    const bool known =
        std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) { return glob_match(pattern, name); });
    if (!known) patterns.push_back(name);
  };
  for (const LinearKind& kind : kinds) {
    if (matches(kind, names) == kind.layers) add(kind.pattern);
  }
  for (const std::string& name : names) add(name);
  return patterns;
}

std::string toml_of(const std::string& recipe, const std::vector<std::string>& skip) {
  std::string text = fmt::format("[precision]\nrecipe = \"{}\"\n", recipe);
  if (skip.empty()) return text;
  return text + concat("skip = [\"", joined(skip, "\", \""), "\"]\n");
}

std::string compared_memory(std::size_t bytes, std::size_t bf16) {
  return bytes == bf16 ? std::string("as much memory")
                       : fmt::format("{} {} memory", telemetry::format_bytes(bytes > bf16 ? bytes - bf16 : bf16 - bytes),
                                     bytes > bf16 ? "more" : "less");
}

}  // namespace

Outcome outcome_of(const std::vector<LinearKind>& kinds, const Candidate& candidate, const Candidate& bf16) {
  Outcome outcome;
  double bf16_seconds = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const LinearTime& reference = bf16.times[i];
    const double seconds = total_seconds(candidate.times[i], reference);
    const auto sum_of = [&](std::int64_t in_fp8) {
      return static_cast<double>(in_fp8) * seconds + static_cast<double>(kinds[i].layers - in_fp8) * reference.products_s;
    };
    std::int64_t fp8 = candidate.healthy_layers[i];
    if (candidate.fp8_layers[i] > 0 && seconds > reference.products_s) {
      outcome.slower.push_back(kinds[i].pattern);
      fp8 = 0;
    } else {
      outcome.unhealthy += candidate.fp8_layers[i] - fp8;
    }
    outcome.fp8_linears += fp8;
    bf16_seconds += static_cast<double>(kinds[i].layers) * reference.products_s;
    outcome.as_is.seconds += sum_of(candidate.fp8_layers[i]);
    outcome.advised.seconds += sum_of(fp8);
  }
  for (Sum* sum : {&outcome.as_is, &outcome.advised}) sum->gain_pct = gain_pct(sum->seconds, bf16_seconds);
  return outcome;
}

Recommendation recommend(
    const std::vector<LinearKind>& kinds, const std::vector<Candidate>& candidates, const std::vector<std::string>& skip,
    const std::vector<std::string>& keep,
    const std::function<std::size_t(const std::string& recipe, const std::vector<std::string>& skip)>& memory_of) {
  require(!candidates.empty() && candidates.front().recipe == "bf16", "plan: advice begins with bf16");
  const Candidate& bf16 = candidates.front();
  const Candidate* best = nullptr;
  Outcome outcome;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    Outcome other = outcome_of(kinds, candidates[i], bf16);
    if (best && other.advised.seconds >= outcome.advised.seconds) continue;
    best = &candidates[i];
    outcome = std::move(other);
  }
  Recommendation result{.recipe = "bf16"};
  if (!best) {
    result.reason = "bf16, because no FP8 recipe takes this model";
  } else if (outcome.fp8_linears == 0) {
    result.reason = "bf16, because FP8 makes no linear faster: its casts cost as much time as its products save";
  } else if (outcome.advised.gain_pct < kWorthwhileGainPct) {
    result.reason = fmt::format(
        "bf16, because {}, the fastest FP8 recipe, makes the linears only {:.1f}% faster, and a gain below {}% does not "
        "outweigh the higher loss",
        best->recipe, outcome.advised.gain_pct, kWorthwhileGainPct);
  } else {
    std::vector<std::string> patterns = skip;
    patterns.insert(patterns.end(), outcome.slower.begin(), outcome.slower.end());
    result.recipe = best->recipe;
    result.skip = extended(kinds, patterns, keep);
    result.reason = fmt::format("{}, because it makes the linears {:.1f}% faster than bf16, the most of the FP8 recipes, with {}",
                                best->recipe, outcome.advised.gain_pct,
                                compared_memory(memory_of(result.recipe, result.skip), bf16.memory_bytes));
    if (!outcome.slower.empty()) result.reason += "; linears that FP8 makes slower stay in BF16";
    if (outcome.unhealthy > 0) result.reason += fmt::format("; {} stay in BF16 for their health", outcome.unhealthy);
  }
  result.toml = toml_of(result.recipe, result.skip);
  return result;
}

}  // namespace octet::plan
