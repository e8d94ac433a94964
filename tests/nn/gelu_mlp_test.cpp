#include "octet/nn/gelu_mlp.h"

#include "nn/layer_fixture.h"

namespace octet::nn {
namespace {

constexpr std::int64_t kGeluTokens = 9, kGeluDim = 16, kGeluFfn = 32;

struct GeluMlpLayer : testing::LayerTest {
  void make(const Recipe& of, kernels::Gelu gelu = kernels::Gelu::exact) {
    use(of);
    mlp = std::make_unique<GeluMlp>(
        GeluMlp::Options{
            .up = "up", .down = "down", .dim = kGeluDim, .ffn = kGeluFfn, .gelu = gelu, .init_std = 0.5, .output_init_std = 0.5},
        recipe, *parameters, *scales);
    materialise({&mlp->up(), &mlp->down()});
    for (const Linear* linear : {&mlp->up(), &mlp->down()}) {
      const Tensor& bias = linear->bias()->value;
      queue->copy_to_device(bias.data, random(dtype(), bias.shape).data, bias.bytes());
    }
    h = random(dtype(), {kGeluTokens, kGeluDim});
    residual = random(dtype(), {kGeluTokens, kGeluDim});
    gy = random(dtype(), {kGeluTokens, kGeluDim});
  }

  std::unique_ptr<GeluMlp> mlp;
  Tensor h, residual, gy;
};

TEST_F(GeluMlpLayer, BackwardIsTheDerivative) {
  for (const kernels::Gelu gelu : {kernels::Gelu::exact, kernels::Gelu::tanh}) {
    make(testing::fp64_recipe(), gelu);
    const Tensor y = zeros(DType::f64, {kGeluTokens, kGeluDim}), gh = random(DType::f64, {kGeluTokens, kGeluDim});
    GeluMlpSaved saved;
    const auto loss = [&] {
      stash.release_to(0);
      mlp->forward(scope(), made(mlp->input(scope(), kGeluTokens, saved), h), residual, y, saved);
      return dot(y, gy);
    };
    loss();
    mlp->backward(scope(), made(mlp->down().gradient(scope(), gy), gy), saved, gh);
    expect_gradient("h", h, gh, loss);
    expect_gradient("up", mlp->up().weight().value, copy(mlp->up().weight().grad), loss);
    expect_gradient("down", mlp->down().weight().value, copy(mlp->down().weight().grad), loss);
    expect_gradient("up bias", mlp->up().bias()->value, copy(mlp->up().bias()->grad), loss);
    expect_gradient("down bias", mlp->down().bias()->value, copy(mlp->down().bias()->grad), loss);
  }
}

// All that backward reads comes out the same from a full forward, from one without y, and from a selective one and its rebuild.
TEST_F(GeluMlpLayer, AllWaysToBackwardGiveTheSameBits) {
  for (const std::string& name : recipes::recipe_names()) {
    for (const std::string wgrad : {"recipe", "bf16"}) {
      make(recipes::make_recipe(name, {.wgrad = wgrad}));
      const Tensor y = zeros(dtype(), {kGeluTokens, kGeluDim});
      Tensor bias_gradient;
      enum class Way { forward, without_y, rebuilt };
      const auto gradient = [&](Way way) {
        stash.release_to(0);
        scratch.release_to(0);
        GeluMlpSaved saved;
        Scope s = scope();
        s.checkpointing = way == Way::rebuilt ? Checkpointing::selective : Checkpointing::none;
        s.record = way == Way::without_y ? Record::nothing : Record::amax;
        mlp->forward(s, made(mlp->input(s, kGeluTokens, saved), h), residual, way == Way::without_y ? Tensor{} : y, saved);
        if (way == Way::rebuilt) mlp->rebuild(s, made(mlp->rebuild_input(s, kGeluTokens), h), saved);
        const Tensor gh = zeros(dtype(), {kGeluTokens, kGeluDim});
        const parallel::Parameter& bias = *mlp->up().bias();
        queue->zero(bias.grad.data, bias.grad.bytes());
        mlp->backward(s, made(mlp->down().gradient(s, gy), gy), saved, gh);
        bias_gradient = copy(bias.grad);
        return gh;
      };
      const Tensor expected = gradient(Way::forward), expected_bias = bias_gradient;
      EXPECT_TRUE(testing::same_bytes(gradient(Way::without_y), expected)) << name << " " << wgrad;
      EXPECT_TRUE(testing::same_bytes(gradient(Way::rebuilt), expected)) << name << " " << wgrad;
      EXPECT_TRUE(testing::same_bytes(bias_gradient, expected_bias)) << name << " " << wgrad;
    }
  }
}

}  // namespace
}  // namespace octet::nn
