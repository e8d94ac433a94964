#include "octet/nn/moe.h"

#include "nn/layer_fixture.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/router/router.h"

namespace octet::nn {
namespace {

using testing::values_of;

constexpr std::int64_t kMoeTokens = 40, kMoeDim = 16, kMoeFfn = 32, kExperts = 4;

double distance(const Tensor& a, const Tensor& b) {
  const auto x = values_of(a), y = values_of(b);
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / size);
}

struct MoeLayer : testing::LayerTest {
  void make(const Recipe& of, std::int64_t top_k = 2, double losses = 0, std::int64_t experts = kExperts) {
    use(of);
    moe = std::make_unique<Moe>(
        Moe::Options{
            .mlp = {.name = "moe", .dim = kMoeDim, .ffn = kMoeFfn, .experts = experts, .init_std = 0.5, .output_init_std = 0.5},
            .top_k = top_k,
            .balance = 0.7 * losses,
            .z = 0.3 * losses},
        recipe, *parameters, *scales);
    materialise(moe->mlp().linears());
    h = random(dtype(), {kMoeTokens, kMoeDim});
    residual = random(dtype(), {kMoeTokens, kMoeDim});
    gy = random(dtype(), {kMoeTokens, kMoeDim});
  }
  // Run the parts of a pass in their order.
  void forward(const Scope& s, const Operand& x, const Tensor& y, MoeSaved& saved) {
    MoeWork work;
    moe->route(s, x, saved);
    moe->dispatch(s, saved, work);
    moe->experts(s, saved);
    moe->collect(s, saved, work);
    moe->combine(s, residual, y, saved);
  }
  void backward(const Scope& s, MoeSaved& saved, const Tensor& gh) {
    const ArenaScope temporaries(s.scratch);
    MoeWork work;
    moe->combine_backward(s, {.values = gy}, saved, work);
    moe->dispatch_gradients(s, saved, work);
    moe->experts_backward(s, saved, work);
    moe->collect_gradients(s, saved, work);
    moe->route_backward(s, saved, work, gh);
  }
  enum class Way { forward, without_y, rebuilt };
  // Runs forward and backward. Returns y and gh.
  std::pair<Tensor, Tensor> run(Way way = Way::forward) {
    stash.release_to(0);
    scratch.release_to(0);
    MoeSaved saved;
    Scope s = scope();
    s.checkpointing = way == Way::rebuilt ? Checkpointing::selective : Checkpointing::none;
    s.record = way == Way::without_y ? Record::nothing : Record::amax;
    s.watch = watch;
    const Tensor y = zeros(dtype(), {kMoeTokens, kMoeDim}), gh = zeros(dtype(), {kMoeTokens, kMoeDim});
    forward(s, made(moe->input(s, kMoeTokens), h), way == Way::without_y ? Tensor{} : y, saved);
    if (way == Way::rebuilt) {
      const Scope again = without_record(s);
      moe->rebuild(again, made(moe->input(again, kMoeTokens), h), saved);
    }
    backward(s, saved, gh);
    return {y, gh};
  }
  // Makes all logits equal, so that all tokens go to the first experts.
  void blind_the_router() { stream->zero(moe->router().value.data, moe->router().value.bytes()); }

  std::unique_ptr<Moe> moe;
  Watch* watch = nullptr;
  Tensor h, residual, gy;
};

TEST_F(MoeLayer, BackwardIsTheDerivative) {
  make(testing::fp64_recipe(), 2, 1.0);
  const Tensor y = zeros(DType::f64, {kMoeTokens, kMoeDim}), gh = random(DType::f64, {kMoeTokens, kMoeDim});
  MoeSaved saved;
  const auto loss = [&] {
    stash.release_to(0);
    std::vector<double> total(static_cast<std::size_t>(2 + moe->router().value.rows()));
    Scope s = scope();
    s.router_total = total.data();
    forward(s, made(moe->input(s, kMoeTokens), h), y, saved);
    return dot(y, gy) + 0.7 * total[0] + 0.3 * total[1];
  };
  loss();
  backward(scope(), saved, gh);
  expect_gradient("h", h, gh, loss);
  expect_gradient("router", moe->router().value, copy(moe->router().grad), loss);
  for (LinearWeight* linear : moe->mlp().linears())
    expect_gradient(linear->name(), linear->weight().value, copy(linear->weight().grad), loss);
}

// A hundred experts take no more launches than a few. The routers differ, and so do the rows of each expert.
TEST_F(MoeLayer, LaunchesDoNotDependOnTheNumberOfExperts) {
  for (const std::string& name : recipes::recipe_names()) {
    const auto launches = [&](std::int64_t experts) {
      make(recipes::make_recipe(name, {}), 2, 1.0, experts);
      stream->start_profile();
      run(Way::rebuilt);
      std::int64_t calls = 0;
      for (const OpTime& op : stream->take_profile()) calls += op.calls;
      return calls;
    };
    EXPECT_EQ(launches(4), launches(32)) << name;
  }
}

// Backward gives the same bits after a full forward, after a forward without y, and after a selective forward with a rebuild.
TEST_F(MoeLayer, AllWaysToBackwardGiveTheSameBits) {
  for (const std::string& name : recipes::recipe_names()) {
    for (const std::string wgrad : {"recipe", "bf16"}) {
      make(recipes::make_recipe(name, {.wgrad = wgrad}), 2, 1.0);
      const Tensor expected = run(Way::forward).second;
      EXPECT_TRUE(testing::same_bytes(run(Way::without_y).second, expected)) << name << " " << wgrad;
      EXPECT_TRUE(testing::same_bytes(run(Way::rebuilt).second, expected)) << name << " " << wgrad;
    }
  }
}

// If every token goes to one expert, the layer equals an MLP with that expert's weights. The padding rows of the expert's tile
// must change nothing. If they changed the codes, results would differ by 2^-4. Two roundings to BF16 and another order of sums
// cause much less.
TEST_F(MoeLayer, AllTokensOnOneExpert) {
  constexpr double kAllowed = 0x1p-7;
  for (const std::string& name : recipes::recipe_names()) {
    make(recipes::make_recipe(name, {}), 1);
    blind_the_router();
    const Tensor nothing = zeros(dtype(), {kMoeTokens, kMoeDim});
    residual = nothing;
    const auto experts = moe->mlp().linears();
    for (const LinearWeight* linear : experts) kernels::fill_normal(*stream, {.x = linear->weight().grad, .deviation = 1e9});
    const auto [y, gh] = run();
    const Tensor ggate_up = copy(experts[0]->weight().grad), gdown = copy(experts[1]->weight().grad);
    for (std::size_t i = 2; i < experts.size(); ++i) {
      const Tensor& g = experts[i]->weight().grad;
      EXPECT_EQ(values_of(g), std::vector<double>(static_cast<std::size_t>(g.elements()), 0.0)) << name << ": no tokens came";
    }

    // An MLP with the weights of expert 0.
    const Tensor gate_up = copy(experts[0]->weight().primary()), down = copy(experts[1]->weight().primary());
    const Tensor input = h, upstream = gy;
    use(recipe);
    Mlp mlp({.name = "mlp", .dim = kMoeDim, .ffn = kMoeFfn}, recipe, *parameters, *scales);
    materialise(mlp.linears());
    stream->copy(mlp.up().weight().primary().data, gate_up.data, gate_up.bytes());
    stream->copy(mlp.down().weight().primary().data, down.data, down.bytes());
    parameters->refresh(*stream, scratch);
    const Tensor y1 = zeros(dtype(), {kMoeTokens, kMoeDim}), gh1 = zeros(dtype(), {kMoeTokens, kMoeDim});
    stash.release_to(0);
    scratch.release_to(0);
    MlpSaved saved;
    mlp.forward(scope(), made(mlp.input(scope(), kMoeTokens), input), nothing, y1, saved);
    mlp.backward(scope(), made(mlp.down().g().gradient(scope(), upstream), upstream), saved, gh1);
    EXPECT_LT(distance(y, y1), kAllowed) << name;
    EXPECT_LT(distance(gh, gh1), kAllowed) << name;
    EXPECT_LT(distance(ggate_up, mlp.up().weight().grad), kAllowed) << name;
    EXPECT_LT(distance(gdown, mlp.down().weight().grad), kAllowed) << name;
  }
}

// A watch can run the three products of each expert alone.
TEST_F(MoeLayer, ShowsProductsThatCanRunAlone) {
  struct Runs final : Watch {
    void operand(const Scope&, std::string_view, Role, const Tensor&, const Quantized&) override {}
    void product(const Scope& scope, std::string_view linear, std::string_view which, const kernels::Gemm& gemm) override {
      const ArenaScope temporaries(scope.scratch);
      for (const double value : values_of(run_alone(scope, gemm))) ASSERT_TRUE(std::isfinite(value)) << linear << " " << which;
      ++count[std::string(which)];
    }
    void attention(const Scope&, std::string_view, const Tensor&) override {}
    std::map<std::string, int> count;
  };
  for (const std::string& name : recipes::recipe_names()) {
    make(recipes::make_recipe(name, {}));
    if (!recipe.is_fp8()) continue;
    Runs runs;
    watch = &runs;
    run();
    EXPECT_GT(runs.count["y"], 2) << name;
    EXPECT_EQ(runs.count["gx"], runs.count["y"]) << name;
    EXPECT_EQ(runs.count["gw"], runs.count["y"]) << name;
  }
}

// The memory that the meta device plans is enough, whichever experts the tokens choose.
TEST_F(MoeLayer, TakesNoMoreMemoryThanPlanned) {
  for (const std::string name : {"bf16", "fp8_delayed", "fp8_block", "mxfp8"}) {
    for (const auto checkpointing : {Checkpointing::none, Checkpointing::selective}) {
      for (const bool blind : {false, true}) {
        make(recipes::make_recipe(name, {}));
        if (blind) blind_the_router();
        Arena real_stash(*device, MemoryCategory::activations, std::size_t{1} << 24);
        Arena planned_stash(*meta, MemoryCategory::activations, 0), planned(*meta, MemoryCategory::workspace, 0);
        Arena room(*device, MemoryCategory::workspace, std::size_t{1} << 24);
        const auto pass = [&](Stream& on, Arena& st, Arena& sc) {
          Scope s{.stream = on,
                  .stash = st,
                  .scratch = sc,
                  .dtype = dtype(),
                  .checkpointing = checkpointing,
                  .context = *alone,
                  .tensor = *alone,
                  .expert = *alone};
          MoeSaved saved;
          const Operand x = moe->input(s, kMoeTokens);
          if (on.kind() == DeviceKind::cpu) on.copy(x.values.data, h.data, h.bytes());
          forward(s, x, residual, saved);
          if (checkpointing == Checkpointing::selective) {
            const Scope again = without_record(s);
            const Operand rebuilt = moe->input(again, kMoeTokens);
            if (on.kind() == DeviceKind::cpu) on.copy(rebuilt.values.data, h.data, h.bytes());
            moe->rebuild(again, rebuilt, saved);
          }
          backward(s, saved, gy);
        };
        const std::unique_ptr<Device> like_cpu = make_meta_device(DeviceKind::cpu);
        const std::unique_ptr<Stream> on_meta = like_cpu->make_stream();
        pass(*on_meta, planned_stash, planned);
        pass(*stream, real_stash, room);
        EXPECT_LE(real_stash.high_water(), planned_stash.high_water()) << name << (blind ? " one set" : "");
        EXPECT_LE(room.high_water(), planned.high_water()) << name << (blind ? " one set" : "");
      }
    }
  }
}

}  // namespace
}  // namespace octet::nn
