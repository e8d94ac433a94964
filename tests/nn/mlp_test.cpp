// The feed-forward layers: the gated one, and both forms of GELU with biases.
#include "octet/nn/mlp.h"

#include "nn/layer_fixture.h"

namespace octet::nn {
namespace {

constexpr std::int64_t kMlpTokens = 9, kMlpDim = 16, kMlpFfn = 32;

struct Gated {
  static Mlp::Options options() {
    return {.name = "mlp", .dim = kMlpDim, .ffn = kMlpFfn, .init_std = 0.5, .output_init_std = 0.5};
  }
};
template <kernels::Gelu kGelu>
struct Plain {
  static Mlp::Options options() {
    return {.name = "mlp",
            .up = {"up"},
            .down = "down",
            .dim = kMlpDim,
            .ffn = kMlpFfn,
            .gelu = kGelu,
            .bias = true,
            .init_std = 0.5,
            .output_init_std = 0.5};
  }
};

template <class Kind>
struct MlpLayer : testing::LayerTest {
  void make(const Recipe& of) {
    use(of);
    mlp = std::make_unique<Mlp>(Kind::options(), recipe, *parameters, *scales);
    linears = mlp->linears();
    materialise(linears);
    for (const LinearWeight* linear : linears) {
      if (!linear->bias()) continue;
      const Tensor& bias = linear->bias()->value;
      stream->copy_to_device(bias.data, random(dtype(), bias.shape).data, bias.bytes());
    }
    h = random(dtype(), {kMlpTokens, kMlpDim});
    residual = random(dtype(), {kMlpTokens, kMlpDim});
    gy = random(dtype(), {kMlpTokens, kMlpDim});
  }

  std::unique_ptr<Mlp> mlp;
  std::vector<LinearWeight*> linears;
  Tensor h, residual, gy;
};
using Kinds = ::testing::Types<Gated, Plain<kernels::Gelu::exact>, Plain<kernels::Gelu::tanh>>;
TYPED_TEST_SUITE(MlpLayer, Kinds);

TYPED_TEST(MlpLayer, BackwardIsTheDerivative) {
  this->make(testing::fp64_recipe());
  auto& mlp = *this->mlp;
  const Tensor y = this->zeros(DType::f64, {kMlpTokens, kMlpDim}), gh = this->random(DType::f64, {kMlpTokens, kMlpDim});
  MlpSaved saved;
  const auto loss = [&] {
    this->stash.release_to(0);
    mlp.forward(this->scope(), this->made(mlp.input(this->scope(), kMlpTokens), this->h), this->residual, y, saved);
    return this->dot(y, this->gy);
  };
  loss();
  mlp.backward(this->scope(), this->made(mlp.down().g().gradient(this->scope(), this->gy), this->gy), saved, gh);
  this->expect_gradient("h", this->h, gh, loss);
  for (const LinearWeight* linear : this->linears) {
    this->expect_gradient(linear->name(), linear->weight().value, this->copy(linear->weight().grad), loss);
    if (!linear->bias()) continue;
    this->expect_gradient(linear->name() + " bias", linear->bias()->value, this->copy(linear->bias()->grad), loss);
  }
}

// Backward gives the same bits after a full forward, after a forward without y, and after a selective forward with a rebuild.
TYPED_TEST(MlpLayer, AllWaysToBackwardGiveTheSameBits) {
  for (const std::string& name : recipes::recipe_names()) {
    for (const std::string wgrad : {"recipe", "bf16"}) {
      this->make(recipes::make_recipe(name, {.wgrad = wgrad}));
      auto& mlp = *this->mlp;
      const Tensor y = this->zeros(this->dtype(), {kMlpTokens, kMlpDim});
      enum class Way { forward, without_y, rebuilt };
      // Returns the gradients of the input and of the biases.
      const auto gradients = [&](Way way) {
        this->stash.release_to(0);
        this->scratch.release_to(0);
        MlpSaved saved;
        Scope s = this->scope();
        s.checkpointing = way == Way::rebuilt ? Checkpointing::selective : Checkpointing::none;
        s.record = way == Way::without_y ? Record::nothing : Record::amax;
        mlp.forward(s, this->made(mlp.input(s, kMlpTokens), this->h), this->residual, way == Way::without_y ? Tensor{} : y,
                    saved);
        if (way == Way::rebuilt) {
          const Scope again = rebuild_scope(s);
          mlp.rebuild(again, this->made(mlp.input(again, kMlpTokens), this->h), saved);
        }
        std::vector<Tensor> result = {this->zeros(this->dtype(), {kMlpTokens, kMlpDim})};
        for (const LinearWeight* linear : this->linears) {
          if (linear->bias()) this->stream->zero(linear->bias()->grad.data, linear->bias()->grad.bytes());
        }
        mlp.backward(s, this->made(mlp.down().g().gradient(s, this->gy), this->gy), saved, result[0]);
        for (const LinearWeight* linear : this->linears) {
          if (linear->bias()) result.push_back(this->copy(linear->bias()->grad));
        }
        return result;
      };
      const std::vector<Tensor> expected = gradients(Way::forward);
      for (const Way way : {Way::without_y, Way::rebuilt}) {
        const std::vector<Tensor> actual = gradients(way);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(testing::same_bytes(actual[i], expected[i])) << name << " " << wgrad << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::nn
