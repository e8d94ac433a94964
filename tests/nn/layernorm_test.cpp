#include "nn/layer_fixture.h"
#include "octet/nn/norm.h"

namespace octet::nn {
namespace {

using testing::values_of;

using LayerNormLayer = testing::LayerTest;

TEST_F(LayerNormLayer, BackwardIsTheDerivativeAndAddsUp) {
  use(testing::fp64_recipe());
  const Norm norm(NormKind::layer, "norm", 24, 1e-3, *parameters);
  materialise({});
  const parallel::Parameter &weight = norm.weight(), &bias = norm.bias();
  EXPECT_EQ(weight.spec.name, "norm.weight");
  EXPECT_EQ(bias.spec.name, "norm.bias");
  EXPECT_FALSE(weight.spec.decay);
  EXPECT_FALSE(bias.spec.decay);
  EXPECT_EQ(values_of(weight.value), std::vector<double>(24, 1.0));
  EXPECT_EQ(values_of(bias.value), std::vector<double>(24, 0.0));
  for (const parallel::Parameter* p : {&weight, &bias}) {
    stream->copy_to_device(p->value.data, random(DType::f64, {24}).data, p->value.bytes());
  }

  const Tensor x = random(DType::f64, {9, 24}), gy = random(DType::f64, {9, 24});
  const Tensor y = zeros(DType::f64, {9, 24}), gx = zeros(DType::f64, {9, 24});
  const Tensor statistics = norm.allocate_statistics(scope(), stash, 9);
  const auto loss = [&] {
    norm.forward(scope(), x, {.values = y}, statistics);
    return dot(y, gy);
  };
  loss();
  norm.backward(scope(), gy, x, statistics, {.values = gx});
  expect_gradient("x", x, copy(gx), loss);
  expect_gradient("weight", weight.value, copy(weight.grad), loss);
  expect_gradient("bias", bias.value, copy(bias.grad), loss);
  loss();
  expect_doubled(gx, [&] { norm.backward(scope(), gy, x, statistics, {.values = gx}); });
}

}  // namespace
}  // namespace octet::nn
