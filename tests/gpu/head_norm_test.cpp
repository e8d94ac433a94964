#include "octet/kernels/head_norm/head_norm.h"

#include <cmath>
#include <vector>

#include "gpu/twins.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

struct HeadNormSize {
  std::int64_t rows, head_dim, q_heads, k_heads;
};
// Heads of less than a warp's width to the widest; more heads than warps, and rows that are not whole groups.
constexpr HeadNormSize kHeadNormSizes[] = {{1, 2, 1, 1},   {37, 24, 3, 2},    {130, 64, 9, 3},  {300, 128, 32, 8},
                                           {33, 80, 4, 1}, {1700, 128, 4, 4}, {70, 192, 11, 1}, {65, 256, 8, 2}};

struct HeadNormGpuTest : testing::TwinTest {
  struct Operands {
    HeadNormSize size;
    Twin q_weight, k_weight, x, before, rstd, g, gq, gk;
  };
  template <class Side>
  static HeadNorm norm_of(const Operands& o, Side side) {
    return {.head_dim = o.size.head_dim,
            .q_heads = o.size.q_heads,
            .k_heads = o.size.k_heads,
            .q_weight = side(o.q_weight),
            .k_weight = side(o.k_weight)};
  }
  static Tensor cpu_side(const Twin& t) { return t.cpu; }
  static Tensor gpu_side(const Twin& t) { return t.gpu; }

  Operands operands(const HeadNormSize& s, DType grad) {
    const std::int64_t cols = (s.q_heads + s.k_heads) * s.head_dim;
    const Operands o{.size = s,
                     .q_weight = random(DType::bf16, {s.head_dim}),
                     .k_weight = random(DType::bf16, {s.head_dim}),
                     .x = random(DType::bf16, {s.rows, cols + 8}),
                     .before = poisoned(DType::bf16, {s.rows, cols}),
                     .rstd = poisoned(DType::f32, {s.rows, s.q_heads + s.k_heads}),
                     .g = random(DType::bf16, {s.rows, cols + 8}),
                     .gq = random(grad, {s.head_dim}),
                     .gk = random(grad, {s.head_dim})};
    const auto run = [&](Stream& stream, auto side) {
      head_norm_forward(stream, {.norm = norm_of(o, side),
                                 .x = side(o.x).slice_cols(0, cols),
                                 .epsilon = 1e-6,
                                 .before = side(o.before),
                                 .rstd = side(o.rstd)});
    };
    run(*cpu_stream, cpu_side);
    run(*gpu_stream, gpu_side);
    return o;
  }
};

TEST_F(HeadNormGpuTest, ForwardAgreesWithTheCpu) {
  for (const HeadNormSize& s : kHeadNormSizes) {
    const Operands o = operands(s, DType::f32);
    const double r = gamma(static_cast<double>(s.head_dim) + 8, kUnitRoundoffF32), stored = r + kUnitRoundoffBf16 * (1 + r);
    const std::string what = concat(s.rows, " x ", s.q_heads, " + ", s.k_heads, " heads of ", s.head_dim);
    expect_near(o.rstd, {.relative = 2 * r / (1 - r)}, what + ", rstd");
    expect_near(o.x, {.relative = 2 * stored / (1 - stored)}, what + ", y");
    expect_same_bytes(o.before, what + ", before");
  }
}

// Terms of sums are at most as large as those that the test adds up in FP64; each side errs by gamma of their number, and rounds
// once when it stores.
TEST_F(HeadNormGpuTest, BackwardAgreesWithTheCpu) {
  for (const HeadNormSize& s : kHeadNormSizes) {
    for (const DType grad : {DType::f32, DType::bf16}) {
      const Operands o = operands(s, grad);
      upload(o.rstd);  // the CPU's, on both sides
      const auto d = static_cast<std::size_t>(s.head_dim), heads = static_cast<std::size_t>(s.q_heads + s.k_heads);
      const auto rows = static_cast<std::size_t>(s.rows), stride = heads * d + 8;
      const auto x = values_of(o.before.cpu), rstd = values_of(o.rstd.cpu), g = values_of(o.g.cpu);
      const std::vector<double> weights[] = {values_of(o.q_weight.cpu), values_of(o.k_weight.cpu)};
      std::vector<double> g_size(g.size()), weight_sizes[] = {values_of(o.gq.cpu), values_of(o.gk.cpu)};
      for (auto& sizes : weight_sizes) {
        for (double& v : sizes) v = std::abs(v);
      }
      for (std::size_t t = 0; t < rows; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          const std::size_t part = h < static_cast<std::size_t>(s.q_heads) ? 0 : 1;
          double mean = 0;
          for (std::size_t i = 0; i < d; ++i)
            mean += std::abs(g[t * stride + h * d + i] * weights[part][i] * x[(t * heads + h) * d + i] * rstd[t * heads + h]) /
                    static_cast<double>(d);
          for (std::size_t i = 0; i < d; ++i) {
            const double n = std::abs(x[(t * heads + h) * d + i]) * rstd[t * heads + h], gy = std::abs(g[t * stride + h * d + i]);
            g_size[t * stride + h * d + i] = rstd[t * heads + h] * (gy * std::abs(weights[part][i]) + n * mean);
            weight_sizes[part][i] += gy * n;
          }
        }
      }
      const auto run = [&](Stream& stream, Arena& scratch, auto side) {
        head_norm_backward(stream, scratch,
                           {.norm = norm_of(o, side),
                            .before = side(o.before),
                            .rstd = side(o.rstd),
                            .g = side(o.g).slice_cols(0, static_cast<std::int64_t>(heads * d)),
                            .gq_weight = side(o.gq),
                            .gk_weight = side(o.gk)});
      };
      run(*cpu_stream, cpu_scratch, cpu_side);
      run(*gpu_stream, gpu_scratch, gpu_side);
      const auto agree = [&](const Twin& t, const std::vector<double>& size, double terms, double storage, const char* what) {
        const auto expected = values_of(t.cpu);
        const double sums = gamma(terms, kUnitRoundoffF32);
        EXPECT_TRUE(near(
            values_of(fetch(t.gpu).view()), expected,
            [&](std::size_t i) {
              return 2 * (sums * size[i] + storage * (std::abs(expected[i]) + 2 * sums * size[i])) / (1 - storage);
            },
            t.cpu.cols()))
            << what << ", " << s.rows << " rows of " << heads << " heads of " << d;
      };
      agree(o.g, g_size, static_cast<double>(d) + 8, kUnitRoundoffBf16, "g");
      const double storage = grad == DType::bf16 ? kUnitRoundoffBf16 : kUnitRoundoffF32;
      agree(o.gq, weight_sizes[0], static_cast<double>(rows * heads) + 8, storage, "q_weight");
      agree(o.gk, weight_sizes[1], static_cast<double>(rows * heads) + 8, storage, "k_weight");
    }
  }
}

}  // namespace
}  // namespace octet::kernels
