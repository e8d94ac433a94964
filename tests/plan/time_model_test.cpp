#include "octet/plan/time_model.h"

#include <gtest/gtest.h>

#include "octet/recipes/registry.h"

namespace octet::plan {
namespace {

// A machine with round numbers: 1e12 operations/s, 1e9 bytes/s, 4 multiprocessors, and 1 µs for each launch.
double rate(std::string_view op) { return op == "gemm fp8 fast" ? 2e12 : 1e12; }
constexpr Machine kMachine{.flops = rate, .copy_bytes_per_s = 1e9, .multiprocessors = 4, .launch_s = 1e-6};

OpTime product(const char* op, std::int64_t m, std::int64_t n, std::int64_t k, double bytes = 0) {
  return {.op = op,
          .work = {.flops = 2.0 * static_cast<double>(m * n * k), .bytes = bytes, .shape = {m, n, k}},
          .calls = 1,
          .seconds = 0};
}

TEST(TimeModel, WholeWavesRunAtTheFullRate) {
  // There are 4 x 2 tiles on 4 multiprocessors, and 2 * 512 * 512 * 1024 = 536,870,912 operations.
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm bf16", 512, 512, 1024), 1), 1e-6 + 536.870912e-6);
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm fp8 fast", 512, 512, 1024), 1), 1e-6 + 268.435456e-6);
}

TEST(TimeModel, ALastWaveFillsAPart) {
  // 5 tiles take two waves, which is 5 of 8 places. 2 * 640 * 256 * 1024 = 335,544,320 operations run at 0.625 of the rate.
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm bf16", 640, 256, 1024), 1), 1e-6 + 536.870912e-6);
  // One row more than 4 tiles makes a fifth tile.
  EXPECT_NEAR(predicted_seconds(kMachine, product("gemm bf16", 513, 256, 1024), 1), 1e-6 + 268.959744e-6 / 0.625, 1e-12);
}

TEST(TimeModel, FewTilesAreCutAlongK) {
  // One tile has 67,108,864 operations for K = 1024. Pieces of 512 along K fill two of four places. K = 4096 fills all four, and
  // K = 100 one.
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm bf16", 128, 256, 1024), 1), 1e-6 + 67.108864e-6 * 2);
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm bf16", 128, 256, 4096), 1), 1e-6 + 268.435456e-6);
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm bf16", 128, 256, 100), 1), 1e-6 + 6.5536e-6 * 4);
}

TEST(TimeModel, MemoryBoundsThinProductsAndEveryOtherOp) {
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, product("gemm bf16", 512, 512, 1024, 1e9), 1), 1 + 1e-6);
  OpTime cast{.op = "quantize", .work = {.bytes = 5e3}, .calls = 3, .seconds = 0};
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, cast, 1), 3e-6 + 5e-6);
  EXPECT_DOUBLE_EQ(predicted_seconds(kMachine, cast, 2), 6e-6 + 5e-6);
}

TEST(TimeModel, SumsAMicroBatch) {
  LinearOps ops;
  ops.micro_batch = {product("gemm bf16", 512, 512, 1024),
                     {.op = "rmsnorm_forward", .work = {.bytes = 1e3}, .calls = 1, .seconds = 7}};
  ops.micro_batch[0].seconds = 3;
  ops.weight = {{.op = "quantize", .work = {.bytes = 8e3}, .calls = 1, .seconds = 8}};
  LinearKind kind{.name = "o", .pattern = "model.layers.*.self_attn.o_proj", .out = 512};
  LinearSetting setting{.model = {}, .batch = 1, .seq_len = 1 << 20, .micro_batches = 4, .storage = {}};
  const Recipe delayed = recipes::make_recipe("fp8_delayed", {}), current = recipes::make_recipe("fp8_current", {});

  LinearTime time = predicted_time(kMachine, ops, kind, delayed, setting);
  EXPECT_DOUBLE_EQ(time.products_s, 537.870912e-6);
  EXPECT_DOUBLE_EQ(time.others_s, 2e-6 + 9e-6 / 4);  // four micro-batches share the weight's cast
  // Current scales compute an amax before each cast.
  EXPECT_DOUBLE_EQ(predicted_time(kMachine, ops, kind, current, setting).others_s, 3e-6 + 10e-6 / 4);

  time = measured_time(ops, kind, setting);
  EXPECT_DOUBLE_EQ(time.products_s, 3);
  EXPECT_DOUBLE_EQ(time.others_s, 7 + 8 / 4.0);
  // A head that takes 2^29 / 2048 = 262,144 tokens at a time runs four times.
  kind.name = "head";
  kind.out = 2048;
  time = measured_time(ops, kind, setting);
  EXPECT_DOUBLE_EQ(time.products_s, 12);
  EXPECT_DOUBLE_EQ(time.others_s, 28 + 2);
}

}  // namespace
}  // namespace octet::plan
