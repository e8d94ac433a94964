#include "octet/kernels/swiglu/swiglu.h"

#include <cmath>
#include <vector>

#include "gpu/fused.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

// tests/kernels/swiglu_test.cpp derives this error of the CPU. The GPU's exp and reciprocal are as accurate.
const double kRoundoff = gamma(12, kUnitRoundoffF32);

struct SwigluGpuTest : testing::FusedTest {
  // The gates are widely spread, and some lie beyond the range of exp.
  Twin gates(std::int64_t rows, std::int64_t f) {
    const Rng rng(3, RngStream::test, 1);
    const double extreme[] = {200.0, -200.0, 1e30, -1e30, 0.0, -87.9, -95.0};
    return filled(DType::bf16, {rows, 2 * f}, [&](std::int64_t i) {
      if (i % (2 * f) < f && i % 97 == 11) return extreme[i / 97 % 7];
      return 4.0 * rng.normal(static_cast<std::uint64_t>(i));
    });
  }
};

struct SwigluSize {
  std::int64_t rows, f;
};
constexpr SwigluSize kSwigluSizes[] = {{1, 16}, {19, 1}, {37, 45}, {130, 136}, {200, 176}, {128, 128}, {261, 384}, {256, 2048}};

TEST_F(SwigluGpuTest, AgreesWithTheCpu) {
  for (const auto& [rows, f] : kSwigluSizes) {
    const Twin gate_up = gates(rows, f), gy = random(DType::bf16, {rows, f});
    const Twin y = poisoned(DType::bf16, {rows, f}), g = poisoned(DType::bf16, {rows, 2 * f});
    swiglu_forward(*cpu_stream, cpu_scratch, {.gate_up = gate_up.cpu, .y = y.cpu});
    swiglu_forward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .y = y.gpu});
    swiglu_backward(*cpu_stream, cpu_scratch, {.gate_up = gate_up.cpu, .gy = gy.cpu, .ggate_up = g.cpu});
    swiglu_backward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .gy = gy.gpu, .ggate_up = g.gpu});
    // The relative error of each side is at most r. Below the smallest normal number the error is at most one unit of the
    // subnormals.
    const double r = kRoundoff + kUnitRoundoffBf16;
    expect_near(y, {.absolute = 0x1p-126, .relative = 2 * r / (1 - r)}, concat("forward ", y.cpu.shape));
    const auto z = values_of(gate_up.cpu), upstream = values_of(gy.cpu), expected = values_of(g.cpu);
    const auto width = static_cast<std::size_t>(f);
    EXPECT_TRUE(near(
        values_of(fetch(g.gpu).view()), expected,
        [&](std::size_t i) {
          const std::size_t row = i / (2 * width), col = i % width, gate = row * 2 * width + col;
          const double s = 1 / (1 + std::exp(-z[gate]));
          const double size = i % (2 * width) < width
                                  ? std::abs(upstream[row * width + col] * z[gate + width] * s) * (1 + std::abs(z[gate]))
                                  : std::abs(upstream[row * width + col] * z[gate] * s);
          return 2 * (kRoundoff * size + kUnitRoundoffBf16 * (1 + kRoundoff) * (std::abs(expected[i]) + kRoundoff * size)) /
                     (1 - r) +
                 0x1p-126;
        },
        2 * f))
        << "backward " << g.cpu.shape;
    swiglu_backward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .gy = gy.gpu, .ggate_up = gate_up.gpu});
    expect_equal(gate_up.gpu, g.gpu, "in place");
  }
}

TEST_F(SwigluGpuTest, WritesTheCodesOfItsResults) {
  for (const auto& [rows, f] : kSwigluSizes) {
    const Twin gate_up = gates(rows, f), gy = random(DType::bf16, {rows, f});
    expect_same_codes(
        rows, f, [&](const Tensor& y) { swiglu_forward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .y = y}); },
        [&](const QuantizeEpilogue& codes) {
          swiglu_forward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .codes = codes});
        },
        concat("forward ", rows, " x ", f));
    expect_same_codes(
        rows, 2 * f,
        [&](const Tensor& y) {
          swiglu_backward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .gy = gy.gpu, .ggate_up = y});
        },
        [&](const QuantizeEpilogue& codes) {
          swiglu_backward(*gpu_stream, gpu_scratch, {.gate_up = gate_up.gpu, .gy = gy.gpu, .codes = codes});
        },
        concat("backward ", rows, " x ", f));
  }
}

}  // namespace
}  // namespace octet::kernels
