#include "octet/nn/linear.h"

#include "nn/layer_fixture.h"
#include "octet/kernels/column_sums/column_sums.h"
#include "octet/kernels/elementwise/elementwise.h"

namespace octet::nn {
namespace {

using testing::fp64_recipe;

struct LinearLayer : testing::LayerTest {
  static Linear::Options options() { return {.parts = {"a.b"}, .out = 12, .in = 20, .init_std = 1.0}; }
};

TEST_F(LinearLayer, BackwardIsTheDerivative) {
  use(fp64_recipe());
  Linear linear(options(), recipe, *parameters, *scales);
  materialise({&linear.weights()[0]});
  const Tensor x = random(DType::f64, {7, 20}), residual = random(DType::f64, {7, 12}), gy = random(DType::f64, {7, 12});
  const Tensor y = zeros(DType::f64, {7, 12}), gx = random(DType::f64, {7, 20});
  Operand saved;
  const auto loss = [&] {
    saved = linear_forward(linear, scope(), {.values = x}, residual, y);
    return dot(y, gy);
  };
  loss();
  EXPECT_EQ(saved.values.data, x.data) << "what backward reads is the caller's, not a copy";
  linear_backward(linear, scope(), {.values = gy}, saved, gx);
  expect_gradient("x", x, gx, loss);
  expect_gradient("weight", linear.weight().value, copy(linear.weight().grad), loss);
  expect_gradient("residual", residual, gy, loss);
  // A later backward pass adds to the weight's gradient. Without a gx it computes nothing else.
  expect_doubled(linear.weight().grad, [&] { linear_backward(linear, adding(scope()), {.values = gy}, saved, {}); });
}

TEST_F(LinearLayer, ABiasIsAddedAndHasItsGradient) {
  for (const parallel::Cut along : {parallel::Cut::none, parallel::Cut::rows, parallel::Cut::columns}) {
    use(fp64_recipe());
    Linear::Options with = options();
    with.bias = true;
    with.cut.along = along;
    Linear linear(with, recipe, *parameters, *scales);
    materialise({&linear.weights()[0]});
    const parallel::Parameter& bias = *linear.bias();
    EXPECT_EQ(bias.spec.name, "a.b.bias");
    EXPECT_FALSE(bias.spec.decay);
    EXPECT_EQ(testing::values_of(bias.value), std::vector<double>(12, 0.0));
    stream->copy_to_device(bias.value.data, random(DType::f64, {12}).data, bias.value.bytes());
    const Tensor x = random(DType::f64, {7, 20}), residual = random(DType::f64, {7, 12}), gy = random(DType::f64, {7, 12});
    const Tensor y = zeros(DType::f64, {7, 12}), gx = random(DType::f64, {7, 20});
    Operand saved;
    const auto loss = [&] {
      saved = linear_forward(linear, scope(), {.values = x}, residual, y);
      return dot(y, gy);
    };
    loss();
    linear_backward(linear, scope(), {.values = gy}, saved, gx);
    expect_gradient("x", x, gx, loss);
    expect_gradient("bias", bias.value, copy(bias.grad), loss);
    expect_doubled(bias.grad, [&] { linear_backward(linear, scope(), {.values = gy}, saved, {}); });
  }
}

// Y is rounded once before the bias is added and once after. The bias gradient sums the values of G, even if the product uses
// codes.
TEST_F(LinearLayer, ABiasIsNotQuantised) {
  for (const std::string& name : recipes::recipe_names()) {
    for (const parallel::Cut along : {parallel::Cut::rows, parallel::Cut::columns}) {
      const Tensor x = random(DType::f32, {9, 32}), values = random(DType::f32, {48}), g = random(DType::f32, {9, 48});
      const auto run = [&](bool bias, Tensor& gradient) {
        use(recipes::make_recipe(name, {}));
        Linear linear({.parts = {"a"}, .out = 48, .in = 32, .cut = {.along = along}, .bias = bias}, recipe, *parameters, *scales);
        materialise({&linear.weights()[0]});
        const auto stored = [&](const Tensor& from) {
          const Tensor to = zeros(dtype(), from.shape);
          kernels::cast(*stream, {.x = from, .y = to});
          return to;
        };
        if (bias) kernels::cast(*stream, {.x = values, .y = linear.bias()->value});
        const Tensor y = zeros(dtype(), {9, 48}), gy = stored(g);
        const Operand saved = linear_forward(linear, scope(), {.values = stored(x)}, {}, y);
        const Operand operand = linear.g().gradient(scope(), gy);
        const bool made_as_codes = linear.is_fp8() && (!bias || along == parallel::Cut::columns);
        EXPECT_EQ(static_cast<bool>(operand.epilogue), made_as_codes) << name;
        linear_backward(linear, scope(), made(operand, gy), saved, {});
        if (bias) gradient = copy(linear.bias()->grad);
        stash.release_to(0);
        scratch.release_to(0);
        return y;
      };
      Tensor gradient;
      const Tensor without = run(false, gradient), with = run(true, gradient);
      const Tensor expected = copy(without), row = zeros(dtype(), {1, 48}), sums = zeros(DType::f32, {48}),
                   gy = zeros(dtype(), {9, 48});
      kernels::cast(*stream, {.x = values.reshape({1, 48}), .y = row});
      kernels::cast(*stream, {.x = g, .y = gy});
      for (std::int64_t t = 0; t < 9; ++t) kernels::add(*stream, {.x = row, .y = expected.slice_rows(t, t + 1)});
      EXPECT_TRUE(testing::same_bytes(with, expected)) << name;
      kernels::column_sums(*stream, scratch, {.x = gy, .y = sums});
      EXPECT_TRUE(testing::same_bytes(gradient, sums)) << name;
    }
  }
}

TEST_F(LinearLayer, TheResidualMayBeAbsent) {
  use(fp64_recipe());
  Linear linear(options(), recipe, *parameters, *scales);
  materialise({&linear.weights()[0]});
  const Tensor x = random(DType::f64, {7, 20}), zero = zeros(DType::f64, {7, 12});
  const Tensor with = zeros(DType::f64, {7, 12}), without = random(DType::f64, {7, 12});
  linear_forward(linear, scope(), {.values = x}, zero, with);
  linear_forward(linear, scope(), {.values = x}, {}, without);
  EXPECT_TRUE(testing::same_bytes(without, with));
}

TEST_F(LinearLayer, SharesAWeight) {
  use(fp64_recipe());
  parallel::Parameter& table = parameters->add({.name = "table", .shape = {12, 20}});
  Linear::Options shared = options();
  shared.shared_weight = &table;
  Linear linear(shared, recipe, *parameters, *scales);
  EXPECT_EQ(parameters->parameters().size(), 1u);
  EXPECT_EQ(&linear.weight(), &table);
  shared.in = 24;
  expect_refusal([&] { Linear(shared, recipe, *parameters, *scales); }, "a.b: weight [12, 20] shared as [12, 24]");
}

TEST_F(LinearLayer, IsNamedAfterItsFirstPart) {
  use(recipes::make_recipe("bf16", {}));
  Linear one({.parts = {"q"}, .out = 16, .in = 16}, recipe, *parameters, *scales);
  Linear two({.parts = {"q", "k"}, .out = 16, .in = 16}, recipe, *parameters, *scales);
  EXPECT_EQ(one.name(), "q");
  EXPECT_EQ(one.weight().spec.name, "q.weight");
  EXPECT_EQ(two.name(), "q.fused");
  EXPECT_EQ(two.weight().spec.name, "q.fused.weight");
}

TEST_F(LinearLayer, KeepsItsInputWhereWgradReadsIt) {
  const auto keeps = [&](const char* name, const recipes::Options& settings, const Recipe* given = nullptr) {
    use(given ? *given : recipes::make_recipe(name, settings));
    return Linear({.parts = {"a"}, .out = 16, .in = 32}, recipe, *parameters, *scales).x().keeps_values();
  };
  EXPECT_TRUE(keeps("bf16", {}));
  EXPECT_TRUE(keeps("fp32", {}));
  EXPECT_FALSE(keeps("fp8_delayed", {}));
  EXPECT_FALSE(keeps("mxfp8", {}));
  EXPECT_TRUE(keeps("fp8_rowwise", {.wgrad = "bf16"}));
  EXPECT_TRUE(keeps("fp8_block", {.skip = {"a"}}));
}

TEST_F(LinearLayer, TellsTheStoreHowItsWeightIsRead) {
  use(recipes::make_recipe("fp8_delayed", {}));
  Linear linear({.parts = {"a"}, .out = 16, .in = 32}, recipe, *parameters, *scales);
  ASSERT_TRUE(linear.weight().spec.quant);
  EXPECT_EQ(linear.weight().spec.quant->source, ScaleSource::history);
  EXPECT_FALSE(linear.weight().spec.read_as_values);
  materialise({&linear.weights()[0]});
  std::vector<std::string> names;
  for (const auto& named : scales->tensors()) names.push_back(named.name);
  EXPECT_EQ(names, (std::vector<std::string>{"fp8.a.x.scale", "fp8.a.x.amax_history", "fp8.a.w.scale", "fp8.a.w.amax_history",
                                             "fp8.a.g.scale", "fp8.a.g.amax_history"}));
  EXPECT_EQ(linear.weight().scale_slot.scale, scales->tensors()[2].tensor.data);
  EXPECT_EQ(linear.weight().scale_slot.amax, scales->tensors()[3].tensor.data);

  use(recipes::make_recipe("fp8_delayed", {.skip = {"a"}}));
  Linear skipped({.parts = {"a"}, .out = 17, .in = 3}, recipe, *parameters, *scales);
  EXPECT_FALSE(skipped.weight().spec.quant);
  materialise({&skipped.weights()[0]});
  EXPECT_TRUE(scales->tensors().empty());
}

}  // namespace
}  // namespace octet::nn
