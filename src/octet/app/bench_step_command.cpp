#include <fmt/format.h>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/base/threads.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/format.h"
#include "octet/train/engine.h"

namespace octet::app {
namespace {

// The quickstart's model and step.
train::EngineOptions options_of(const std::string& recipe) {
  train::EngineOptions options;
  options.model = {
      .vocab = 256, .dim = 128, .ffn = 352, .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 32, .max_position = 128};
  options.recipe = recipes::make_recipe(recipe, {});
  options.seq_len = 128;
  options.micro_batch_size = 16;
  return options;
}

double seconds_of_step(const std::string& recipe) {
  const train::EngineOptions options = options_of(recipe);
  train::Engine engine(options, DeviceKind::cpu);
  engine.initialise(1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(options.seq_len * options.micro_batch_size));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7 % 256);
  std::uint32_t step = 0;
  return shortest_time([&] {
    engine.begin_step();
    engine.forward_backward({.tokens = ids, .targets = ids}, nullptr);
    engine.apply(1e-4, ++step);
  });
}

}  // namespace

int run_bench_step(const BenchArgs& args) {
  if (!args.run.path.empty()) return run_bench_run(args);
  const train::EngineOptions options = options_of("bf16");
  const double tokens = static_cast<double>(options.seq_len * options.micro_batch_size);
  const double bf16 = seconds_of_step("bf16");
  std::vector<BenchRow> rows;
  for (const std::string& recipe : recipes::recipe_names()) {
    const double seconds = recipe == "bf16" ? bf16 : seconds_of_step(recipe);
    rows.push_back({.name = fmt::format("{} ({:.2f} x the BF16 step)", recipe, seconds / bf16),
                    .seconds = seconds,
                    .rate = tokens / seconds,
                    .unit = "tok/s",
                    .ceiling = tokens / bf16,
                    .against = "the BF16 step"});
  }
  fmt::print("a step of {} parameters, {} x {} tokens, on {}\n", telemetry::format_count(options.model.parameters()),
             options.micro_batch_size, options.seq_len, telemetry::format_count(num_threads(), "thread"));
  show_bench(rows, args.json);
  return 0;
}

}  // namespace octet::app
