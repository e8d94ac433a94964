#include "octet/kernels/gelu/gelu.h"

#include <cmath>
#include <vector>

#include "gpu/fused.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

constexpr Gelu kKinds[] = {Gelu::exact, Gelu::tanh};

struct GeluGpuTest : testing::FusedTest {};

// tests/kernels/gelu_test.cpp derives each side's error: a few roundoffs of the argument times the argument, and one rounding to
// BF16. The argument is bounded by x^2 and 2 u of x^3 / 10.
TEST_F(GeluGpuTest, AgreesWithTheCpu) {
  for (const Gelu kind : kKinds) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {19, 31}, {130, 352}, {300, 4096}}) {
      for (const std::int64_t gap : {0, 3, 8}) {
        const Twin x = random(DType::bf16, {rows, cols + gap}, 3.0), gy = random(DType::bf16, {rows, cols});
        const Twin y = poisoned(DType::bf16, {rows, cols}), gx = poisoned(DType::bf16, {rows, cols});
        gelu_forward(*cpu_stream, cpu_scratch, {.kind = kind, .x = x.cpu.slice_cols(0, cols), .y = y.cpu});
        gelu_forward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu.slice_cols(0, cols), .y = y.gpu});
        gelu_backward(*cpu_stream, cpu_scratch, {.kind = kind, .x = x.cpu.slice_cols(0, cols), .gy = gy.cpu, .gx = gx.cpu});
        gelu_backward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu.slice_cols(0, cols), .gy = gy.gpu, .gx = gx.gpu});
        const auto z = values_of(x.cpu), g = values_of(gy.cpu), value = values_of(y.cpu), gradient = values_of(gx.cpu);
        const auto width = static_cast<std::size_t>(cols), stride = static_cast<std::size_t>(cols + gap);
        const auto at = [&](std::size_t i) { return std::abs(z[i / width * stride + i % width]); };
        const auto relative = [&](std::size_t i) {
          return gamma(24 + 4 * (at(i) * at(i) + at(i) * at(i) * at(i) / 4), kUnitRoundoffF32);
        };
        EXPECT_TRUE(near(
            values_of(fetch(y.gpu).view()), value,
            [&](std::size_t i) {
              return (2 * relative(i) + 2 * kUnitRoundoffBf16) / (1 - kUnitRoundoffBf16) * std::abs(value[i]);
            },
            cols))
            << "y " << x.cpu.shape;
        // p and x s are each below 1.2 in magnitude.
        EXPECT_TRUE(near(
            values_of(fetch(gx.gpu).view()), gradient,
            [&](std::size_t i) {
              return (2.4 * relative(i) * (1 + at(i)) * std::abs(g[i]) + 2 * kUnitRoundoffBf16 * std::abs(gradient[i])) /
                     (1 - kUnitRoundoffBf16);
            },
            cols))
            << "gx " << x.cpu.shape;
      }
    }
  }
}

TEST_F(GeluGpuTest, InPlace) {
  for (const Gelu kind : kKinds) {
    const Twin x = random(DType::bf16, {130, 352}), gy = random(DType::bf16, {130, 352}), gx = poisoned(DType::bf16, {130, 352});
    gelu_backward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu, .gy = gy.gpu, .gx = gx.gpu});
    gelu_backward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu, .gy = gy.gpu, .gx = x.gpu});
    expect_equal(x.gpu, gx.gpu, "gx over x");
  }
}

TEST_F(GeluGpuTest, WritesTheCodesOfItsResult) {
  for (const Gelu kind : kKinds) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 16}, {37, 45}, {130, 352}, {257, 1024}}) {
      const Twin x = random(DType::bf16, {rows, cols}, 4.0), gy = random(DType::bf16, {rows, cols});
      expect_same_codes(
          rows, cols, [&](const Tensor& y) { gelu_forward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu, .y = y}); },
          [&](const QuantizeEpilogue& codes) {
            gelu_forward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu, .codes = codes});
          },
          concat("forward ", x.cpu.shape));
      expect_same_codes(
          rows, cols,
          [&](const Tensor& gx) { gelu_backward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu, .gy = gy.gpu, .gx = gx}); },
          [&](const QuantizeEpilogue& codes) {
            gelu_backward(*gpu_stream, gpu_scratch, {.kind = kind, .x = x.gpu, .gy = gy.gpu, .codes = codes});
          },
          concat("backward ", x.cpu.shape));
    }
  }
}

}  // namespace
}  // namespace octet::kernels
