// The observers of FP8 linears: health samples and dumps.
#include <gtest/gtest.h>

#include <set>

#include "octet/train/dump.h"
#include "octet/train/health.h"
#include "support/tiny_model.h"

namespace octet::train {
namespace {

using testing::make_engine;
using testing::random_tokens;
using testing::tiny_options;
using testing::Tokens;

Tokens tokens_for(const EngineOptions& options) {
  return random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
}

// Each operand of each FP8 linear gives one sample, whatever is recomputed. The dry run of the memory plan gives none.
TEST(Health, SamplesEveryOperandOnce) {
  for (const std::string recipe : {"fp8_delayed", "fp8_block", "mxfp8"}) {
    std::vector<telemetry::HealthSample> expected;
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      HealthWatch health;
      EngineOptions options = tiny_options(recipe);
      options.checkpointing = mode;
      options.watch = &health;
      const auto engine = make_engine(options);
      EXPECT_TRUE(health.take(1).empty()) << "nothing has run";
      engine->begin_step();
      engine->forward_backward(tokens_for(options).batch(), &health);
      engine->stream().synchronize();
      const auto samples = health.take(7);
      EXPECT_TRUE(health.take(7).empty());
      std::set<std::string> names;
      for (const telemetry::HealthSample& s : samples) {
        EXPECT_EQ(s.step, 7);
        EXPECT_TRUE(names.insert(s.tensor).second) << s.tensor << " twice";
        EXPECT_GT(s.amax, 0) << s.tensor;
        EXPECT_GT(s.scale, 0) << s.tensor;
        EXPECT_GT(s.sqnr_db, 10) << s.tensor;
        EXPECT_LT(s.sqnr_db, 50) << s.tensor;
        EXPECT_GE(s.flushed_pct, 0);
        EXPECT_LE(s.saturated_pct, 100);
      }
      EXPECT_EQ(names.size(), 2u * 4 * 3) << "the head is BF16";
      EXPECT_TRUE(names.count("model.layers.1.self_attn.q_proj.fused.g"));
      if (expected.empty()) expected = samples;
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(samples[i].sqnr_db, expected[i].sqnr_db) << expected[i].tensor;
    }
  }
}

// A dump holds the same tensors whatever is recomputed.
TEST(Dump, HoldsWhatThePatternNames) {
  std::set<std::string> expected;
  for (const std::string linear : {"gate_proj.fused", "down_proj"}) {
    const std::string prefix = "3.1.model.layers.1.mlp." + linear + ".";
    for (const char* product : {"y", "gx", "gw"}) expected.insert(prefix + product);
    for (const char* role : {"x.", "w.", "g."}) {
      for (const char* part : {"values", "codes", "scale_inv", "codes_t", "scale_inv_t"}) expected.insert(prefix + role + part);
    }
  }
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    DumpWatch dump("model.layers.1.mlp.*");
    EngineOptions options = tiny_options("fp8_block");
    options.watch = &dump;
    options.checkpointing = mode;
    const auto engine = make_engine(options);
    EXPECT_TRUE(dump.tensors().empty());
    engine->begin_step();
    dump.begin(3, 1);
    engine->forward_backward(tokens_for(options).batch(), &dump);
    std::set<std::string> names;
    for (const auto& [name, tensor] : dump.tensors()) {
      names.insert(name);
      EXPECT_GT(tensor.bytes(), 0u) << name;
    }
    EXPECT_EQ(names, expected);
  }
}

// Observing a step must not change its gradients, and the memory plan must include the watch.
TEST(Observers, ChangeNoBit) {
  for (const std::string recipe : {"fp8_delayed", "fp8_rowwise"}) {
    const auto gradients = [&](nn::Watch* watch) {
      EngineOptions options = tiny_options(recipe);
      options.watch = watch;
      const auto engine = make_engine(options);
      engine->begin_step();
      engine->forward_backward(tokens_for(options).batch(), watch);
      std::vector<std::vector<std::uint8_t>> result;
      for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
        result.push_back(testing::bytes_of_tensor(p.grad));
      }
      return result;
    };
    HealthWatch health;
    DumpWatch dump("*");
    const auto expected = gradients(nullptr);
    EXPECT_EQ(gradients(&health), expected);
    EXPECT_EQ(gradients(&dump), expected);
  }
}

}  // namespace
}  // namespace octet::train
