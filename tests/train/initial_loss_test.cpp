#include "octet/train/initial_loss.h"

#include <gtest/gtest.h>

#include "octet/train/setup.h"
#include "octet/train/world.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

struct LossCase {
  const char* model;
  int ranks;
  std::vector<std::string> overrides;
};

// The evaluation in BF16 must fit wherever the run fits. Otherwise the run would be refused because of a single line in its log.
TEST(InitialLoss, TheEvaluationTakesLessThanTheRunOnEveryMesh) {
  const std::vector<LossCase> cases = {
      {"llama3.2-1b", 1, {}},
      {"llama3.1-8b", 8, {}},
      {"llama3.1-8b", 8, {"parallel.reshard_after_forward=true", "parallel.gradients=sharded"}},
      {"llama3.1-8b", 8, {"parallel.tensor=4", "parallel.reshard_after_forward=true", "parallel.gradients=sharded"}},
      {"llama3.1-8b", 8, {"parallel.context=4"}},
      {"llama3-70b", 256, {"parallel.reshard_after_forward=true", "parallel.gradients=sharded"}},
      {"llama3.1-405b", 2048, {"parallel.reshard_after_forward=true", "parallel.gradients=sharded"}},
      {"mixtral-8x7b", 16, {"parallel.expert=8", "parallel.reshard_after_forward=true", "parallel.gradients=sharded"}},
  };
  // The settings with which a run takes the least memory.
  const std::vector<std::string> smallest = {"optimizer.state_dtype=bf16",
                                             "optimizer.master_weights=false",
                                             "training.grad_dtype=bf16",
                                             "activation_checkpoint.mode=full",
                                             "precision.head=recipe",
                                             "precision.emulate=true",
                                             "run.device=cpu",
                                             "training.seq_len=1024",
                                             "data.source=[{path = 'none'}]"};
  for (const LossCase& c : cases) {
    for (const std::string& recipe : all_recipes()) {
      train::Config config = train::parse_config(concat("[model]\nconfig = '", c.model, "'\n"), "run.toml");
      for (const auto* list : {&smallest, &c.overrides}) {
        for (const std::string& o : *list) train::apply_override(config, o);
      }
      train::apply_override(config, "precision.recipe=" + recipe);
      const bool one_copy = recipe == "fp8_block" || recipe == "fp8_current" || recipe == "fp8_delayed";
      if (one_copy) train::apply_override(config, "precision.weight_transpose_cache=false");
      const Recipe made = train::recipe_of(config, DeviceKind::cpu);
      if (!made.is_fp8()) continue;
      train::EngineOptions run = train::engine_options(config, made);
      run.layout = train::layout_of(config, train::mesh_of(config, c.ranks));
      const std::size_t evaluation = train::measure(train::evaluation_in_bf16(run), DeviceKind::cuda).total();
      EXPECT_LT(evaluation, train::measure(run, DeviceKind::cuda).total()) << c.model << " on " << c.ranks << ", " << recipe;
      EXPECT_EQ(train::memory_beyond_run(run, DeviceKind::cuda), 0u) << c.model << " on " << c.ranks << ", " << recipe;
    }
  }
}

// Adapters need few gradients and states, so FP8 weights with them take less than the same weights in BF16.
TEST(InitialLoss, TheEvaluationTakesMoreThanARunOfAdapters) {
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{}, {"parallel.pipeline=2", "training.global_batch_size=8"}}) {
    train::Config config = train::parse_config("[model]\nconfig = 'llama3-70b'\n[lora]\nrank = 16\n", "run.toml");
    for (const char* o :
         {"run.device=cpu", "training.micro_batch_size=1", "training.seq_len=1024", "precision.recipe=fp8_delayed",
          "precision.weight_transpose_cache=false", "activation_checkpoint.mode=full"}) {
      train::apply_override(config, o);
    }
    for (const std::string& o : mesh) train::apply_override(config, o);
    train::EngineOptions run = train::engine_options(config, train::recipe_of(config, DeviceKind::cpu));
    run.layout = train::layout_of(config, train::mesh_of(config, mesh.empty() ? 1 : 2));
    const std::size_t beyond = train::memory_beyond_run(run, DeviceKind::cuda);
    EXPECT_GT(beyond, train::measure(run, DeviceKind::cuda).total()) << mesh.size();
    // Two bytes for each of 70.6 B weights, and what the evaluation needs beside them.
    EXPECT_GT(static_cast<double>(beyond), 2 * 70.5e9 / (mesh.empty() ? 1 : 2) * 0.95) << mesh.size();
  }
}

}  // namespace
}  // namespace octet::testing
