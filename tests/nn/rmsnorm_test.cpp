#include "nn/layer_fixture.h"
#include "octet/nn/norm.h"

namespace octet::nn {
namespace {

using testing::values_of;

using RmsNormLayer = testing::LayerTest;

TEST_F(RmsNormLayer, BackwardIsTheDerivativeAndAddsUp) {
  use(testing::fp64_recipe());
  const Norm norm(NormKind::rms, "norm", 24, 1e-3, *parameters);
  materialise({});
  const parallel::Parameter& weight = norm.weight();
  EXPECT_EQ(weight.spec.name, "norm.weight");
  EXPECT_FALSE(weight.spec.decay);
  EXPECT_EQ(values_of(weight.value), std::vector<double>(24, 1.0));
  stream->copy_to_device(weight.value.data, random(DType::f64, {24}).data, weight.value.bytes());

  const Tensor x = random(DType::f64, {9, 24}), gy = random(DType::f64, {9, 24});
  const Tensor y = zeros(DType::f64, {9, 24}), rstd = zeros(DType::f64, {9}), gx = zeros(DType::f64, {9, 24});
  const auto loss = [&] {
    norm.forward(scope(), x, {.values = y}, rstd);
    return dot(y, gy);
  };
  loss();
  norm.backward(scope(), gy, x, rstd, {.values = gx});
  expect_gradient("x", x, copy(gx), loss);
  expect_gradient("weight", weight.value, copy(weight.grad), loss);
  loss();
  expect_doubled(gx, [&] { norm.backward(scope(), gy, x, rstd, {.values = gx}); });
}

TEST(StatisticsDType, IsF32ExceptInF64) {
  EXPECT_EQ(statistics_dtype(DType::bf16), DType::f32);
  EXPECT_EQ(statistics_dtype(DType::f32), DType::f32);
  EXPECT_EQ(statistics_dtype(DType::f64), DType::f64);
}

}  // namespace
}  // namespace octet::nn
