#include "octet/plan/step_model.h"

#include <gtest/gtest.h>

namespace octet::plan {
namespace {

// A GPU with 1e12 operations/s, 1e9 bytes/s, 4 multiprocessors and 1 µs for each launch. Each node has two GPUs, which send 1e9
// bytes/s.
const Cluster kCluster{.gpu = {.name = "G",
                               .machine = {.flops = [](std::string_view) { return 1e12; },
                                           .copy_bytes_per_s = 1e9,
                                           .multiprocessors = 4,
                                           .launch_s = 1e-6},
                               .nvlink_bytes_per_s = 1e9,
                               .network_bytes_per_s = 1e8},
                       .gpus = 4,
                       .nodes = 2};
const Spans kSpans = {{"near", {2, 1, 2}}, {"far", {2, 2, 1}}};

double seconds(const char* op, const Work& work) { return op_seconds(kCluster, kSpans, op, work); }

// docs/plan.md has the measured shares of the ceiling that ops reach.
TEST(StepModel, OpsTakeTheirShareOfTheCeiling) {
  // There are 8 tiles on 4 multiprocessors, and 2 * 512 * 512 * 1024 operations.
  const Work product{.flops = 536870912.0, .bytes = 1e3, .shape = {512, 512, 1024}};
  EXPECT_DOUBLE_EQ(seconds("gemm bf16", product), 1e-6 + 536.870912e-6 / 1.06);
  // 5 tiles take 5 of 8 places in two waves.
  const Work part{.flops = 335544320.0, .bytes = 1e3, .shape = {640, 256, 1024}};
  EXPECT_DOUBLE_EQ(seconds("gemm fp8 fast", part), 1e-6 + 335.54432e-6 / 0.625 / 1.065);
  // A thin product is limited by memory.
  EXPECT_DOUBLE_EQ(seconds("gemm bf16", {.flops = 1, .bytes = 1e9, .shape = {512, 512, 1024}}), 1 + 1e-6);
  EXPECT_DOUBLE_EQ(seconds("attention_forward", {.flops = 1e9, .bytes = 2.9e9}), 1e-6 + 1e-3 / (0.83 * 620 / 490) + 1e-3);
  EXPECT_DOUBLE_EQ(seconds("attention_backward", {.flops = 1e9, .bytes = 1.06e9}), 1e-6 + 1e-3 / (0.845 * 525 / 400) + 1e-3);
  EXPECT_DOUBLE_EQ(seconds("swiglu_forward", {.flops = 9e9, .bytes = 78e3}), 1e-6 + 100e-6);
  EXPECT_DOUBLE_EQ(seconds("something else", {.bytes = 80e3}), 1e-6 + 100e-6);
  EXPECT_EQ(seconds("wait for ranks", {}), 0);
  EXPECT_DOUBLE_EQ(seconds("all_gather", {.bytes = 1e6, .group = "near"}), 8.4e-6 + 3.4e-6 + 1e-3);
  EXPECT_DOUBLE_EQ(seconds("all_gather", {.bytes = 1e6, .group = "far", .joins = true}), 1e-2);
}

OpTime op(const char* name, double time_s, const Work& work) { return {.op = name, .work = work, .calls = 1, .seconds = time_s}; }

TEST(StepModel, AddsUpAStep) {
  const std::vector<OpTime> compute = {
      op("gemm fp8 fast", 3, {.flops = 100, .fp8_flops = 90, .bytes = 10}), op("attention_forward", 1, {.flops = 20, .bytes = 5}),
      op("swiglu_forward", 2, {.flops = 1, .bytes = 40}), op("all_gather", 0.5, {.bytes = 7, .group = "near"})};
  const std::vector<OpTime> params = {op("reduce_scatter", 2.5, {.bytes = 30, .group = "far"}), op("cast", 0.1, {.bytes = 3})};
  // The computation waits for one of the 3 seconds of exchanges. The other two are hidden, but not entirely.
  const Step step = step_of(kCluster, kSpans, compute, params, 7, 36, 50);
  EXPECT_EQ(step.compute_s, 4);
  EXPECT_EQ(step.memory_s, 2);
  EXPECT_EQ(step.wire_s, 3);
  const double exposed = 1 + (1 - kOverlap) * 2;
  EXPECT_EQ(step.waited_s, 1);
  EXPECT_DOUBLE_EQ(step.exposed_s, exposed);
  EXPECT_DOUBLE_EQ(step.seconds, 6 + exposed);
  EXPECT_EQ(step.flops, 121);
  EXPECT_EQ(step.fp8_flops, 90);
  EXPECT_EQ(step.memory_bytes, 58);
  EXPECT_EQ(step.sent.nvlink_bytes, 7);
  EXPECT_EQ(step.sent.network_bytes, 30);
  EXPECT_DOUBLE_EQ(step.tokens_per_s, 36 / (6 + exposed));
  EXPECT_DOUBLE_EQ(step.model_flops_per_s, 50 * 36 / (6 + exposed));
  EXPECT_EQ(step.bound, Bound::compute);
}

TEST(StepModel, SaysWhatBoundsIt) {
  const std::vector<OpTime> compute = {op("gemm bf16", 1, {.flops = 1}), op("adamw", 2, {.bytes = 1})};
  const auto bound = [&](const char* group, double seconds) {
    const std::vector<OpTime> params = {op("all_gather", seconds, {.bytes = 1, .group = group})};
    return name_of(step_of(kCluster, kSpans, compute, params, std::max(3.0, seconds), 1, 1).bound);
  };
  EXPECT_EQ(bound("near", 0.1), "memory");
  EXPECT_EQ(bound("near", 9), "NVLink");
  EXPECT_EQ(bound("far", 9), "network");
}

}  // namespace
}  // namespace octet::plan
