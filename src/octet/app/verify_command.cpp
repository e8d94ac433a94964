// `octet convert verify`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/threads.h"
#include "octet/app/work_progress.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/telemetry/format.h"
#include "octet/train/adapter_files.h"
#include "octet/train/restore.h"
#include "octet/train/verify.h"

namespace octet::app {
namespace {

using train::TensorDifference;
using train::Verification;

constexpr std::size_t kShown = 8;  // the worst of each kind

// JSON has no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json json_of(const TensorDifference& difference) {
  return {{"name", difference.name},
          {"max_abs", number(difference.absolute)},
          {"max_rel", number(difference.relative)},
          {"norm_a", number(difference.norm_a)},
          {"norm_b", number(difference.norm_b)},
          {"same", difference.same}};
}

Json json_of(const std::vector<TensorDifference>& differences) {
  Json list = Json::array();
  for (const TensorDifference& difference : differences) list.push_back(json_of(difference));
  return list;
}

void print_table(const char* title, std::vector<TensorDifference> differences) {
  std::stable_sort(differences.begin(), differences.end(),
                   [](const TensorDifference& a, const TensorDifference& b) { return a.relative > b.relative; });
  const auto equal =
      std::count_if(differences.begin(), differences.end(), [](const TensorDifference& d) { return d.absolute == 0; });
  fmt::print("{}: {}, {} of them equal\n", title,
             telemetry::format_count(static_cast<std::int64_t>(differences.size()), "tensor"), equal);
  differences.resize(std::min({differences.size(), differences.size() - static_cast<std::size_t>(equal), kShown}));
  if (!differences.empty()) fmt::print("  {:>10} {:>10} {:>12} {:>12}\n", "max rel", "max abs", "norm A", "norm B");
  for (const TensorDifference& d : differences) {
    fmt::print("  {:>10.3g} {:>10.3g} {:>12.6g} {:>12.6g}  {}{}\n", d.relative, d.absolute, d.norm_a, d.norm_b, d.name,
               d.same ? "" : "  differs");
  }
}

}  // namespace

int run_convert_verify(const ConvertVerifyArgs& args) {
  use_threads({});
  const std::filesystem::path a = fetched_folder(args.a), b = fetched_folder(args.b);
  for (const std::filesystem::path& path : {a, b}) {
    train::demand_one(path, "a model directory");
    train::demand_whole_model(path);
  }
  Verification result;
  {
    WorkProgress progress("comparing");
    result = train::verify_models({.a = a,
                                   .b = b,
                                   .tolerance = args.tolerance,
                                   .outputs = !args.weights_only,
                                   .tokens = args.tokens,
                                   .seed = args.seed,
                                   .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }});
  }
  const TensorDifference* worst = result.worst();
  if (args.json) {
    const Json json = {{"a", args.a.string()},
                       {"b", args.b.string()},
                       {"tolerance", args.tolerance},
                       {"same", result.same()},
                       {"config", result.config},
                       {"worst", worst ? json_of(*worst) : Json(nullptr)},
                       {"weights", json_of(result.weights)},
                       {"outputs", json_of(result.outputs)}};
    fmt::print("{}\n", json_text(json, 2));
  } else if (result.config.empty()) {
    print_table("weights", result.weights);
    if (!args.weights_only) print_table("logits, loss and gradients in FP32", result.outputs);
  }
  const std::string both = concat(args.a.string(), " and ", args.b.string());
  demand(result.config.empty(), ExitCode::internal, both, " have different architectures: ", joined(result.config));
  demand(worst == nullptr, ExitCode::internal, both, " differ: ", worst ? worst->name : "", " by ",
         worst ? fmt::format("{:.3g} of its largest element, above {:g}", worst->relative, args.tolerance) : "");
  if (!args.json) fmt::print("the same within {:g}\n", args.tolerance);
  return 0;
}

}  // namespace octet::app
