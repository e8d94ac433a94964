#include "octet/kernels/head_norm/head_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"
#include "support/grad_check.h"

namespace octet::kernels {
namespace {

using testing::compute_roundoff;
using testing::near;
using testing::storage_roundoff;
using testing::values_of;

constexpr std::int64_t kRows = 37, kGap = 6;  // kGap: columns behind those that are normed

struct HeadNormTest : testing::OpTest {
  struct Operands {
    HeadNorm norm;
    Tensor x, before, rstd;
    std::vector<double> given;  // x before it was overwritten
    std::int64_t cols() const { return norm.heads() * norm.head_dim; }
    Tensor normed() const { return x.slice_cols(0, cols()); }
  };
  Operands operands(DType dtype, std::int64_t head_dim, std::int64_t q_heads, std::int64_t k_heads) {
    Operands o{.norm = {.head_dim = head_dim,
                        .q_heads = q_heads,
                        .k_heads = k_heads,
                        .q_weight = random(dtype, {head_dim}),
                        .k_weight = random(dtype, {head_dim})}};
    o.x = random(dtype, {kRows, o.cols() + kGap});
    o.before = zeros(dtype, {kRows, o.cols()});
    o.rstd = zeros(dtype == DType::f64 ? DType::f64 : DType::f32, {kRows, o.norm.heads()});
    o.given = values_of(o.x);
    return o;
  }
  void forward(const Operands& o) {
    head_norm_forward(*stream, {.norm = o.norm, .x = o.normed(), .epsilon = 1e-6, .before = o.before, .rstd = o.rstd});
  }
};

TEST_F(HeadNormTest, ForwardIsTheFormulaForEachHead) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t head_dim : {2, 24, 128}) {
      const Operands o = operands(dtype, head_dim, 3, 2);
      forward(o);
      const auto q_weight = values_of(o.norm.q_weight), k_weight = values_of(o.norm.k_weight);
      std::vector<double> y = o.given, before, rstd;
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t head = 0; head < o.norm.heads(); ++head) {
          double* const at = &y[static_cast<std::size_t>(row * (o.cols() + kGap) + head * head_dim)];
          double squares = 0;
          for (std::int64_t i = 0; i < head_dim; ++i) squares += at[i] * at[i];
          rstd.push_back(1 / std::sqrt(squares / static_cast<double>(head_dim) + 1e-6));
          for (std::int64_t i = 0; i < head_dim; ++i) {
            before.push_back(at[i]);
            at[i] *= rstd.back() * (head < 3 ? q_weight : k_weight)[static_cast<std::size_t>(i)];
          }
        }
      }
      const double relative = gamma(static_cast<double>(head_dim) + 8, compute_roundoff(dtype));
      EXPECT_TRUE(near(o.rstd, rstd, {.relative = relative})) << name_of(dtype) << " K " << head_dim;
      EXPECT_TRUE(near(o.x, y, {.relative = relative + storage_roundoff(dtype)})) << name_of(dtype) << " K " << head_dim;
      EXPECT_EQ(values_of(o.before), before);
    }
  }
}

// f = sum of g * y, whose gradients are those of the op.
TEST_F(HeadNormTest, BackwardAgreesWithFiniteDifferences) {
  const Operands o = operands(DType::f64, 10, 3, 2);
  forward(o);
  const Tensor g = random(DType::f64, {kRows, o.cols()});
  const std::vector<double> weights_of_y = values_of(g);
  const Tensor gq = zeros(DType::f64, {10}), gk = zeros(DType::f64, {10});
  head_norm_backward(*stream, scratch,
                     {.norm = o.norm, .before = o.before, .rstd = o.rstd, .g = g, .gq_weight = gq, .gk_weight = gk});
  Operands again = o;
  again.before = zeros(DType::f64, {kRows, o.cols()});
  std::vector<double> inputs = values_of(o.before);
  const auto f = [&] {
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < o.cols(); ++i)
        o.x.as<double>()[row * (o.cols() + kGap) + i] = inputs[static_cast<std::size_t>(row * o.cols() + i)];
    }
    forward(again);
    double sum = 0;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < o.cols(); ++i)
        sum += weights_of_y[static_cast<std::size_t>(row * o.cols() + i)] * o.x.as<double>()[row * (o.cols() + kGap) + i];
    }
    return sum;
  };
  const auto agrees = [&](const char* name, double* x, const Tensor& gradient) {
    std::vector<double> values = values_of(gradient);
    EXPECT_TRUE(testing::gradient_agrees({.name = name,
                                          .x = x,
                                          .gradient = values.data(),
                                          .count = static_cast<std::int64_t>(values.size()),
                                          .f = f,
                                          .magnitude = static_cast<double>(kRows)}));
  };
  agrees("x", inputs.data(), g);
  agrees("q_weight", o.norm.q_weight.as<double>(), gq);
  agrees("k_weight", o.norm.k_weight.as<double>(), gk);
}

TEST_F(HeadNormTest, BackwardOfFrozenWeightsGivesTheSameGradient) {
  const Operands o = operands(DType::f32, 8, 2, 1);
  forward(o);
  const Tensor given = random(DType::f32, {kRows, o.cols()});
  std::vector<std::vector<double>> gradients;
  for (const bool frozen : {false, true}) {
    const Tensor g = copy(given), of_weight = zeros(DType::f32, {8}), gweight = frozen ? Tensor{} : of_weight;
    head_norm_backward(*stream, scratch,
                       {.norm = o.norm, .before = o.before, .rstd = o.rstd, .g = g, .gq_weight = gweight, .gk_weight = gweight});
    gradients.push_back(values_of(g));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST_F(HeadNormTest, BackwardAddsToTheGradientsOfWeights) {
  const Operands o = operands(DType::f32, 8, 2, 1);
  forward(o);
  const Tensor given = random(DType::f32, {kRows, o.cols()}), start = random(DType::f32, {8});
  std::vector<std::vector<double>> sums;
  for (const bool from_zero : {true, false}) {
    const Tensor g = random(DType::f32, {kRows, o.cols()});
    stream->copy(g.data, given.data, given.bytes());
    const Tensor gq = zeros(DType::f32, {8}), gk = zeros(DType::f32, {8});
    if (!from_zero) stream->copy(gq.data, start.data, start.bytes());
    head_norm_backward(*stream, scratch,
                       {.norm = o.norm, .before = o.before, .rstd = o.rstd, .g = g, .gq_weight = gq, .gk_weight = gk});
    sums.push_back(values_of(gq));
  }
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(sums[1][i], values_of(start)[i] + sums[0][i], 8 * kUnitRoundoffF32 * static_cast<double>(2 * kRows));
  }
}

}  // namespace
}  // namespace octet::kernels
