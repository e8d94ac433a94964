#include "octet/plan/linear_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_model.h"

namespace octet::plan {
namespace {

using octet::testing::recipe_named;
using octet::testing::tiny_config;

std::vector<LinearKind> tiny_kinds(const models::DecoderConfig& config = tiny_config()) {
  models::Decoder model(config, recipe_named("bf16"));
  return linear_kinds(model);
}

LinearSetting tiny_setting() { return {.model = tiny_config(), .batch = 2, .seq_len = 16, .micro_batches = 4, .storage = {}}; }

double other_bytes(const std::vector<OpTime>& profile) {
  double bytes = 0;
  for (const OpTime& op : profile) {
    if (!std::string_view(op.op).starts_with("gemm")) bytes += op.work.bytes;
  }
  return bytes;
}

TEST(LinearRun, MultipliesThreeTimes) {
  const LinearKind qkv = tiny_kinds()[0];  // [64, 32]
  std::vector<std::array<std::int64_t, 3>> shapes;
  for (const OpTime& op : count_linear(qkv, recipe_named("fp8_delayed"), tiny_setting()).micro_batch) {
    if (std::string_view(op.op).starts_with("gemm fp8")) shapes.push_back(op.work.shape);
  }
  // With 32 tokens, fprop is [T, out] over in, dgrad is [T, in] over out, and wgrad is [out, in] over T.
  EXPECT_EQ(shapes, (std::vector<std::array<std::int64_t, 3>>{{32, 64, 32}, {32, 32, 64}, {64, 32, 32}}));
}

// Compares the bytes that FP8 moves with BF16's. X and G have n elements each. Scales take a few bytes and are not counted.
TEST(LinearRun, CastsCountWhatTheyMoveBesideBf16) {
  const std::vector<LinearKind> kinds = tiny_kinds();
  const auto beside_bf16 = [&](std::size_t kind, const char* recipe) {
    const LinearOps fp8 = count_linear(kinds[kind], recipe_named(recipe), tiny_setting());
    const LinearOps bf16 = count_linear(kinds[kind], recipe_named("bf16"), tiny_setting());
    return other_bytes(fp8.micro_batch) - other_bytes(bf16.micro_batch);
  };
  constexpr double kTokens = 32, kScales = 64;
  // qkv: RMSNorm writes codes instead of BF16 values, which takes 2 n bytes in either case. In FP8, rotary backward also reads
  // and writes the 16 columns of values. In BF16 it moves only the 48 rotated columns of 64.
  EXPECT_NEAR(beside_bf16(0, "fp8_delayed"), kTokens * 16 * 2 * 2, kScales);
  // o: X is read again and cast (2 n + 2 n). RMSNorm's backward writes the codes of G in addition to the values (2 n).
  EXPECT_NEAR(beside_bf16(1, "fp8_delayed"), kTokens * 32 * 4 + kTokens * 32 * 2, kScales);
  // down: SwiGLU writes codes instead of BF16 values. The codes of G are written in addition to the values.
  EXPECT_NEAR(beside_bf16(3, "fp8_delayed"), kTokens * 32 * 2, kScales);
  // Current scales read their sources once more: gate and up [T, 2 in] of SwiGLU, and the values of G [T, out].
  EXPECT_NEAR(beside_bf16(3, "fp8_current") - beside_bf16(3, "fp8_delayed"), kTokens * (2 * 48 * 2 + 32 * 2), kScales);
}

TEST(LinearRun, AWeightIsCastFromItsMaster) {
  const LinearKind o = tiny_kinds()[1];  // 1024 elements are read in FP32 and written as codes in both orientations
  EXPECT_NEAR(other_bytes(count_linear(o, recipe_named("fp8_delayed"), tiny_setting()).weight), 1024 * (4 + 2), 64);
  EXPECT_EQ(count_linear(o, recipe_named("bf16"), tiny_setting()).weight.size(), 0u);
  LinearSetting without = tiny_setting();
  without.storage.master_weights = false;
  EXPECT_NEAR(other_bytes(count_linear(o, recipe_named("fp8_delayed"), without).weight), 1024 * (2 + 2), 64);
}

TEST(LinearRun, TheHeadIsCutAsInTraining) {
  LinearSetting setting = tiny_setting();
  setting.batch = 4096;  // 65,536 tokens
  LinearKind head = tiny_kinds()[4];
  head.out = 128256;
  EXPECT_EQ(tokens_at_a_time(head, setting), 4096);  // 2^29 / 128256 = 4186, rounded down to a multiple of 128
  head.out = 256;
  EXPECT_EQ(tokens_at_a_time(head, setting), 65536);
  EXPECT_EQ(tokens_at_a_time(tiny_kinds()[0], setting), 65536);
}

// A step of a model with a mixture in its second layer runs the same grouped products, on the same rows.
TEST(LinearRun, ExpertsMultiplyAsInAStep) {
  train::EngineOptions options = octet::testing::tiny_options("fp8_delayed");
  for (const auto& [name, config] : octet::testing::tiny_models()) {
    if (name == "Qwen3Moe") options.model = config;
  }
  ASSERT_EQ(options.model.experts, 4);
  for (const bool adapts : {false, true}) {
    const train::EngineOptions run = adapts ? octet::testing::adapted(options) : options;
    const auto device = make_meta_device(DeviceKind::cuda);
    const parallel::Groups groups = parallel::silent_groups(run.layout.mesh, 0);
    train::Engine engine(run, *device, groups);
    const octet::testing::Tokens tokens = octet::testing::random_tokens(run.seq_len * run.micro_batch_size, run.model.vocab);
    engine.begin_step();
    engine.stream().start_profile();
    engine.forward_backward(tokens.batch(), nullptr);
    const auto add = [](Work& work, std::int64_t& calls, const std::vector<OpTime>& profile) {
      for (const OpTime& op : profile) {
        if (!std::string_view(op.op).ends_with("grouped")) continue;
        work.flops += op.work.flops;
        work.bytes += op.work.bytes;
        calls += op.calls;
      }
    };
    Work step, alone;
    std::int64_t step_calls = 0, calls = 0;
    add(step, step_calls, engine.stream().take_profile());
    const LinearSetting setting{
        .model = run.model, .batch = run.micro_batch_size, .seq_len = run.seq_len, .micro_batches = 1, .storage = run.storage};
    for (const LinearKind& kind : linear_kinds(engine.model())) {
      add(alone, calls, count_linear(kind, recipe_named("fp8_delayed"), setting).micro_batch);
    }
    if (adapts) {  // one adapter with the rank of both stands for those of the gate and the up projection
      EXPECT_NEAR(alone.flops, step.flops, 0.1 * step.flops);
      EXPECT_NEAR(alone.bytes, step.bytes, 0.1 * step.bytes);
      continue;
    }
    EXPECT_EQ(calls, 6);
    EXPECT_EQ(calls, step_calls);
    EXPECT_EQ(alone.flops, step.flops);
    EXPECT_EQ(alone.bytes, step.bytes);
  }
}

// The meta device only counts. This test computes every kind in every recipe.
TEST(LinearRun, RunsOnADevice) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  for (const auto& [name, model] : octet::testing::tiny_models()) {
    LinearSetting setting = tiny_setting();
    setting.model = model;
    for (const char* recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block"}) {
      for (const LinearKind& kind : tiny_kinds(model)) {
        constexpr std::size_t kPlenty = std::size_t{64} << 20;
        LinearRun run(*stream, kind, recipe_named(recipe), setting, {kPlenty, kPlenty});
        const LinearRun::Capacity before = run.used();
        run.micro_batch();
        run.update_scales();
        run.cast_weight();
        run.micro_batch();
        EXPECT_GT(run.used().stash, 0u) << name << " " << recipe << " " << kind.name;
        EXPECT_GE(run.used().scratch, before.scratch);
      }
    }
  }
}

}  // namespace
}  // namespace octet::plan
