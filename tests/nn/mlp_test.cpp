#include "octet/nn/mlp.h"

#include "nn/layer_fixture.h"

namespace octet::nn {
namespace {

constexpr std::int64_t kMlpTokens = 9, kMlpDim = 16, kMlpFfn = 32;

struct MlpLayer : testing::LayerTest {
  void make(const Recipe& of) {
    use(of);
    mlp = std::make_unique<Mlp>(Mlp::Options{.name = "mlp", .dim = kMlpDim, .ffn = kMlpFfn, .init_std = 0.5, .output_init_std = 0.5}, recipe,
                                *parameters, *scales);
    materialise({&mlp->gate_up(), &mlp->down()});
    h = random(dtype(), {kMlpTokens, kMlpDim});
    residual = random(dtype(), {kMlpTokens, kMlpDim});
    gy = random(dtype(), {kMlpTokens, kMlpDim});
  }

  std::unique_ptr<Mlp> mlp;
  Tensor h, residual, gy;
};

TEST_F(MlpLayer, BackwardIsTheDerivative) {
  make(testing::fp64_recipe());
  const Tensor y = zeros(DType::f64, {kMlpTokens, kMlpDim}), gh = random(DType::f64, {kMlpTokens, kMlpDim});
  MlpSaved saved;
  const auto loss = [&] {
    stash.release_to(0);
    mlp->forward(scope(), made(mlp->input(scope(), kMlpTokens, saved), h), residual, y, saved);
    return dot(y, gy);
  };
  loss();
  mlp->backward(scope(), made(mlp->down().gradient(scope(), gy), gy), saved, gh);
  expect_gradient("h", h, gh, loss);
  expect_gradient("gate_up", mlp->gate_up().weight().value, copy(mlp->gate_up().weight().grad), loss);
  expect_gradient("down", mlp->down().weight().value, copy(mlp->down().weight().grad), loss);
}

// All that backward reads comes out the same from a full forward, from one without y, and from a selective one and its rebuild.
TEST_F(MlpLayer, AllWaysToBackwardGiveTheSameBits) {
  for (const std::string& name : recipes::recipe_names()) {
    for (const std::string wgrad : {"recipe", "bf16"}) {
      make(recipes::make_recipe(name, {.wgrad = wgrad}));
      const Tensor y = zeros(dtype(), {kMlpTokens, kMlpDim});
      enum class Way { forward, without_y, rebuilt };
      const auto gradient = [&](Way way) {
        stash.release_to(0);
        scratch.release_to(0);
        MlpSaved saved;
        Scope s = scope();
        s.checkpointing = way == Way::rebuilt ? Checkpointing::selective : Checkpointing::none;
        s.record = way == Way::without_y ? Record::nothing : Record::amax;
        mlp->forward(s, made(mlp->input(s, kMlpTokens, saved), h), residual, way == Way::without_y ? Tensor{} : y, saved);
        if (way == Way::rebuilt) mlp->rebuild(s, made(mlp->rebuild_input(s, kMlpTokens), h), saved);
        const Tensor gh = zeros(dtype(), {kMlpTokens, kMlpDim});
        mlp->backward(s, made(mlp->down().gradient(s, gy), gy), saved, gh);
        return gh;
      };
      const Tensor expected = gradient(Way::forward);
      EXPECT_TRUE(testing::same_bytes(gradient(Way::without_y), expected)) << name << " " << wgrad;
      EXPECT_TRUE(testing::same_bytes(gradient(Way::rebuilt), expected)) << name << " " << wgrad;
    }
  }
}

}  // namespace
}  // namespace octet::nn
