#include "octet/kernels/experts/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::compute_roundoff;
using testing::near;
using testing::same_bytes;
using testing::storage_roundoff;
using testing::values_of;

struct ExpertsTest : testing::OpTest {
  Tensor matrix(const std::vector<std::int32_t>& values, std::int64_t cols) {
    return integers(values).reshape({static_cast<std::int64_t>(values.size()) / cols, cols});
  }
  // Returns `tokens` x `k` different row indices below `count`.
  Tensor some_rows(std::int64_t tokens, std::int64_t k, std::int64_t count) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) std::swap(rows[i], rows[(i * 7919 + 13) % rows.size()]);
    rows.resize(static_cast<std::size_t>(tokens * k));
    return matrix(rows, k);
  }
};

TEST_F(ExpertsTest, RowsStandByExpertAndToken) {
  const Tensor experts = matrix({2, 0, 2, 3, 0, 2}, 2), counts = zeros(DType::i32, {4}), rows = zeros(DType::i32, {3, 2});
  expert_order(*stream, {.experts = experts, .multiple = 1, .counts = counts, .rows = rows});
  EXPECT_EQ(values_of(counts), (std::vector<double>{2, 0, 3, 1}));
  EXPECT_EQ(values_of(rows), (std::vector<double>{2, 0, 3, 5, 1, 4}));
  expert_order(*stream, {.experts = experts, .multiple = 4, .counts = counts, .rows = rows});
  EXPECT_EQ(values_of(counts), (std::vector<double>{2, 0, 3, 1}));
  EXPECT_EQ(values_of(rows), (std::vector<double>{4, 0, 5, 8, 1, 6}));
  expect_refusal(
      [&] {
        expert_order(*stream, {.experts = matrix({4, 0}, 2), .counts = counts, .rows = zeros(DType::i32, {1, 2})});
      },
      "expert 4");
}

TEST_F(ExpertsTest, ScatterCombineAndDotAreTheFormulas) {
  const std::int64_t tokens = 37, k = 3, d = 45, count = 140;
  for (const DType dtype : testing::kFloatTypes) {
    const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Tensor x = random(dtype, {tokens, d}), packed = random(dtype, {count, d}), residual = random(dtype, {tokens, d});
    const Tensor weights = random(real, {tokens, k}), rows = some_rows(tokens, k, count);
    const auto xs = values_of(x), ps = values_of(packed), ws = values_of(weights), rs = values_of(residual), at = values_of(rows);
    const auto row = [&](std::int64_t t, std::int64_t s) {
      return static_cast<std::size_t>(at[static_cast<std::size_t>(t * k + s)]);
    };
    const double u = compute_roundoff(dtype), stored = storage_roundoff(dtype);
    const std::size_t width = d;

    std::vector<double> scattered = ps, combined, size, dots, dot_size;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto first = static_cast<std::size_t>(t) * width;
      for (std::size_t c = 0; c < width; ++c) {
        double sum = rs[first + c], terms = std::abs(sum);
        for (std::int64_t s = 0; s < k; ++s) {
          const double w = ws[static_cast<std::size_t>(t * k + s)], p = ps[row(t, s) * width + c];
          scattered[row(t, s) * width + c] = w * xs[first + c];
          sum += w * p;
          terms += std::abs(w * p);
        }
        combined.push_back(sum);
        size.push_back(terms);
      }
      for (std::int64_t s = 0; s < k; ++s) {
        double sum = 0, terms = 0;
        for (std::size_t c = 0; c < width; ++c) {
          const double product = xs[first + c] * ps[row(t, s) * width + c];
          sum += product;
          terms += std::abs(product);
        }
        dots.push_back(sum);
        dot_size.push_back(terms);
      }
    }
    const Tensor y = copy(packed), sums = zeros(dtype, {tokens, d}), gweights = zeros(real, {tokens, k});
    expert_scatter(*stream, {.x = x, .rows = rows, .weights = weights, .y = y});
    EXPECT_TRUE(near(y, scattered, {.relative = u + stored})) << name_of(dtype);
    expert_combine(*stream, {.x = packed, .rows = rows, .weights = weights, .residual = residual, .y = sums});
    EXPECT_TRUE(near(
        values_of(sums), combined,
        [&](std::size_t i) { return gamma(k + 1, u) * size[i] + stored * (std::abs(combined[i]) + gamma(k + 1, u) * size[i]); },
        d))
        << name_of(dtype);
    expert_combine(*stream, {.x = packed, .rows = rows, .weights = weights, .residual = residual, .y = residual});
    EXPECT_TRUE(same_bytes(residual, sums)) << "in place, " << name_of(dtype);
    expert_dot(*stream, {.gy = x, .x = packed, .rows = rows, .gweights = gweights});
    EXPECT_TRUE(near(
        values_of(gweights), dots, [&](std::size_t i) { return gamma(d, u) * dot_size[i]; }, k))
        << name_of(dtype);

    // Without weights, scatter copies each token to its rows, and combine over one row gives the token back.
    const Tensor one = some_rows(tokens, 1, count), there = copy(packed), back = zeros(dtype, {tokens, d});
    expert_scatter(*stream, {.x = x, .rows = one, .weights = {}, .y = there});
    expert_combine(*stream, {.x = there, .rows = one, .weights = {}, .residual = {}, .y = back});
    EXPECT_TRUE(same_bytes(back, x)) << name_of(dtype);
  }
}

// The codes of rows that each expert's scale casts, and what complete_codes() makes of them, are those of quantize() byte for
// byte.
TEST_F(ExpertsTest, ScatteredCodesAreThoseOfTheirValues) {
  const std::int64_t tokens = 150, k = 2, d = 48, experts = 3, room = grouped_rows(tokens * k, experts), stride = 5;
  const Tensor x = random(DType::bf16, {tokens, d}), weights = random(DType::f32, {tokens, k});
  x.as<BFloat16>()[7] = BFloat16(1e30f);  // saturates
  const Tensor chosen = zeros(DType::i32, {tokens, k}), rows = zeros(DType::i32, {tokens, k});
  for (std::int64_t i = 0; i < tokens * k; ++i)
    chosen.as<std::int32_t>()[i] = static_cast<std::int32_t>(i < 2 ? i : 2 * (i % k));  // expert 1 has one row
  const RowGroups groups{.counts = zeros(DType::i32, {experts}),
                         .first = zeros(DType::i32, {experts + 1}),
                         .tiles = zeros(DType::i32, {room / kGroupRows})};
  expert_order(*stream, {.experts = chosen, .multiple = kGroupRows, .counts = groups.counts, .rows = rows});
  group_rows(*stream, {groups});
  const Tensor scales = random(DType::f32, {experts, stride}, 100.0);
  for (std::int64_t i = 0; i < scales.elements(); ++i) scales.as<float>()[i] = std::abs(scales.as<float>()[i]);
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const Tensor& by : {Tensor{}, weights}) {
      const auto make = [&] {
        Quantized q{.format = format,
                    .tile = ScaleTile::tensor,
                    .rowwise = zeros(dtype_of(format), {room, d}),
                    .rowwise_scale_inv = zeros(DType::f32, {experts}),
                    .columnwise = zeros(dtype_of(format), {d, room}),
                    .columnwise_scale_inv = {}};
        q.columnwise_scale_inv = q.rowwise_scale_inv;
        return q;
      };
      const Quantized of_values = make(), scattered = make();
      const Tensor values = zeros(DType::bf16, {room, d}), amaxes = zeros(DType::f32, {experts, 2}),
                   sent = zeros(DType::f32, {experts, 2});
      QuantizeEpilogue to{.spec = {.format = format, .tile = ScaleTile::tensor, .source = ScaleSource::history},
                          .out = of_values,
                          .scale = scales.as<float>(),
                          .amax = amaxes.as<float>(),
                          .groups = groups,
                          .scale_stride = stride,
                          .amax_stride = 2};
      expert_scatter(*stream, {.x = x, .rows = rows, .weights = by, .y = values});
      clear_gaps(*stream, {groups, values});
      quantize(*stream, scratch, to.of(values));

      QuantizeEpilogue cast = to;
      cast.amax = sent.as<float>();
      cast.groups = {};
      cast.out.rowwise = scattered.rowwise;
      cast.out.columnwise = cast.out.rowwise_scale_inv = cast.out.columnwise_scale_inv = {};
      expert_scatter(*stream, {.x = x, .rows = rows, .weights = by, .y = {}, .experts = chosen, .codes = cast});
      clear_gaps(*stream, {groups, scattered.rowwise});
      to.out = scattered;
      complete_codes(*stream, to);
      EXPECT_TRUE(same_bytes(scattered.rowwise, of_values.rowwise));
      EXPECT_TRUE(same_bytes(scattered.columnwise, of_values.columnwise));
      EXPECT_TRUE(same_bytes(scattered.rowwise_scale_inv, of_values.rowwise_scale_inv));
      EXPECT_TRUE(same_bytes(sent, amaxes));

      const Tensor largest = random(DType::f32, {experts});
      expert_amax(*stream, {.x = x, .experts = chosen, .weights = by, .amax = largest});
      for (std::int64_t e = 0; e < experts; ++e) EXPECT_EQ(largest.as<float>()[e], amaxes.as<float>()[2 * e]) << e;
    }
  }
}

// An expert without rows has an amax of zero, and one with a NaN among its rows has NaN.
TEST_F(ExpertsTest, AmaxesAreOfAnExpertsOwnRows) {
  const std::int64_t tokens = 20, k = 2, d = 11;
  const Tensor x = random(DType::bf16, {tokens, d}), chosen = zeros(DType::i32, {tokens, k}), amax = random(DType::f32, {4});
  for (std::int64_t t = 0; t < tokens; ++t) {
    chosen.as<std::int32_t>()[t * k] = 0;
    chosen.as<std::int32_t>()[t * k + 1] = t == 7 ? 3 : 1;
  }
  x.as<BFloat16>()[7 * d + 10] = BFloat16(std::numeric_limits<float>::quiet_NaN());
  x.as<BFloat16>()[3 * d] = BFloat16(-8e3f);
  expert_amax(*stream, {.x = x, .experts = chosen, .weights = {}, .amax = amax});
  EXPECT_TRUE(std::isnan(amax.as<float>()[0]));
  EXPECT_EQ(amax.as<float>()[1], static_cast<float>(BFloat16(8e3f)));
  EXPECT_EQ(amax.as<float>()[2], 0.0f);
  EXPECT_TRUE(std::isnan(amax.as<float>()[3]));
}

TEST_F(ExpertsTest, BitsDoNotDependOnThreads) {
  const std::int64_t tokens = 200, k = 2, d = 64, count = 512;
  const Tensor x = random(DType::bf16, {tokens, d}), packed = random(DType::bf16, {count, d});
  const Tensor weights = random(DType::f32, {tokens, k}), rows = some_rows(tokens, k, count);
  expect_same_for_any_threads([&] {
    const Tensor y = zeros(DType::bf16, {count, d}), sums = zeros(DType::bf16, {tokens, d}),
                 dots = zeros(DType::f32, {tokens, k});
    expert_scatter(*stream, {.x = x, .rows = rows, .weights = weights, .y = y});
    expert_combine(*stream, {.x = packed, .rows = rows, .weights = weights, .residual = {}, .y = sums});
    expert_dot(*stream, {.gy = x, .x = packed, .rows = rows, .gweights = dots});
    return std::vector<Tensor>{y, sums, dots};
  });
}

TEST_F(ExpertsTest, RowsThatDoNotExistAreRefused) {
  const Tensor x = random(DType::f32, {2, 4}), rows = matrix({0, 3}, 1);
  expect_refusal(
      [&] {
        expert_scatter(*stream, {.x = x, .rows = rows, .weights = {}, .y = zeros(DType::f32, {3, 4})});
      },
      "row 3");
}

}  // namespace
}  // namespace octet::kernels
