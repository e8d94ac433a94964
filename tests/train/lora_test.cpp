// Adapters beside a frozen model: their gradients, what is frozen, what is in memory, and steps on meshes.
#include <gtest/gtest.h>

#include "octet/kernels/quantize/quantize.h"
#include "support/errors.h"
#include "support/grad_check.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

struct Adapted {
  std::string name;
  train::EngineOptions options;
};
void PrintTo(const Adapted& adapted, std::ostream* out) { *out << adapted.name; }

std::vector<Adapted> models_with_adapters() {
  const auto of = [](const models::DecoderConfig& config, std::vector<std::string> targets = {models::kAllLinear}) {
    train::EngineOptions options = tiny_options("fp64");
    options.model = config;
    return adapted(options, std::move(targets));
  };
  models::DecoderConfig tied = tiny_config();
  tied.tied_head = true;
  // All experts are chosen, because a choice that changes has no derivative.
  models::DecoderConfig mixture = tiny_config();
  mixture.family = "mixtral";
  mixture.experts = mixture.experts_per_token = 3;
  mixture.layers = 1;
  return {{"Llama", of(tiny_config())},
          {"OnlyQueriesAndValues", of(tied, {"q_proj", "v_proj"})},
          {"OnlyUp", of(tiny_config(), {"up_proj"})},
          {"Mixtral", of(mixture)},
          {"GptNeoxParallel", of(tiny_gpt_neox_config(true))},
          {"GptNeoxSequential", of(tiny_gpt_neox_config(false), {"query_key_value", "dense"})},
          {"GptNeo", of(tiny_gpt_neo_config())},
          {"Olmo2", of(tiny_olmo2_config())},
          {"Phi3", of(tiny_phi3_config())},
          {"OnlyFused", of(tiny_phi3_config(), {"qkv_proj", "gate_up_proj"})},
          {"Qwen3", of(tiny_qwen3_config(), {"k_proj", "o_proj", "down_proj"})}};
}

class AdapterGradient : public ::testing::TestWithParam<Adapted> {};

// The gradients of the adapters after a step, by name.
std::map<std::string, std::vector<double>> gradients_of(train::Engine& engine, const Tokens& tokens) {
  engine.begin_step();
  engine.forward_backward(tokens.batch(3), nullptr);
  engine.stream().synchronize();
  std::map<std::string, std::vector<double>> result;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (!p.spec.frozen) result[p.spec.name].assign(p.grad.as<double>(), p.grad.as<double>() + p.elements());
  }
  return result;
}

// With dropout the function is the loss of the step, whose masks stay the same. Checkpointing computes the same numbers again, so
// its gradients are equal to the bit.
TEST_P(AdapterGradient, AgreesWithFiniteDifferences) {
  for (const double dropout : {0.0, 0.3}) {
    train::EngineOptions options = GetParam().options;
    options.adapters.dropout = {.rate = dropout, .seed = 21};
    const auto engine = make_engine(options);
    randomise_b(*engine);
    const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
    const auto gradients = gradients_of(*engine, tokens);
    EXPECT_GE(gradients.size(), 2u * static_cast<std::size_t>(options.model.layers));
    const auto step = [&] {
      engine->begin_step();
      engine->forward_backward(tokens.batch(3), nullptr);
      double loss = 0;
      engine->stream().copy_to_host(&loss, engine->optimizer().loss_total(), sizeof loss);
      return loss;
    };
    const auto evaluation = [&] { return engine->evaluate(tokens.tokens, tokens.targets)[0]; };
    for (parallel::Parameter& p : engine->model().parameters().parameters()) {
      if (p.spec.frozen) continue;
      EXPECT_TRUE(gradient_agrees({.name = p.spec.name,
                                   .x = p.value.as<double>(),
                                   .gradient = gradients.at(p.spec.name).data(),
                                   .count = p.elements(),
                                   .f = dropout > 0 ? std::function<double()>(step) : evaluation,
                                   .samples = dropout > 0 ? 8 : 24,
                                   .noise = 1024 * std::numeric_limits<double>::epsilon()}));
    }
    for (const auto& [name, mode] : {std::pair("selective", nn::Checkpointing::selective), {"full", nn::Checkpointing::full}}) {
      options.checkpointing = mode;
      const auto recomputing = make_engine(options);
      randomise_b(*recomputing);
      EXPECT_TRUE(gradients_of(*recomputing, tokens) == gradients) << name << ", dropout " << dropout;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AdapterGradient, ::testing::ValuesIn(models_with_adapters()),
                         [](const auto& param) { return param.param.name; });

// Returns all that lies on the device of frozen parameters, by name.
std::map<std::string, std::vector<std::uint8_t>> frozen_bytes(train::Engine& engine) {
  std::map<std::string, std::vector<std::uint8_t>> result;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (!p.spec.frozen) continue;
    for (const Tensor& tensor :
         {p.value, p.codes.rowwise, p.codes.rowwise_scale_inv, p.codes.columnwise, p.codes.columnwise_scale_inv})
      if (tensor) result[p.spec.name + concat(" ", result.size())] = bytes_of_tensor(tensor);
  }
  return result;
}

// A frozen weight has the same codes as one that is trained, once its delayed scale is that of its own amax.
TEST(FrozenModel, HasNotOneBitChangedAfterSteps) {
  for (const std::string& recipe : all_precisions()) {
    SCOPED_TRACE(recipe);
    const train::EngineOptions options = adapted(tiny_options(recipe));
    const auto engine = make_engine(options);
    const auto before = frozen_bytes(*engine);
    EXPECT_GE(before.size(), 13u);
    std::map<std::string, std::vector<std::uint8_t>> adapters;
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      if (!p.spec.frozen) adapters[p.spec.name] = bytes_of_tensor(p.primary());
    }
    const Taken taken = take(*engine, {.count = 7, .learning_rate = 1e-2});
    EXPECT_LT(taken.losses[6], taken.losses[0]) << "of the same data";
    EXPECT_TRUE(frozen_bytes(*engine) == before);
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      if (!p.spec.frozen) {
        EXPECT_NE(bytes_of_tensor(p.primary()), adapters.at(p.spec.name)) << p.spec.name;
      }
    }
  }
}

// With B at zero an adapter changes nothing: the loss is that of the model alone, which is trained with the scales of its
// weights' amaxes.
TEST(FrozenModel, ComputesWhatTheTrainedModelComputes) {
  std::vector<train::EngineOptions> variants;
  for (const std::string& recipe : all_recipes()) {
    variants.push_back(mixture_options(recipe));
    variants.push_back(tiny_options(recipe));
    if (!variants.back().recipe.is_fp8()) continue;
    const recipes::Options of_head{.head = "recipe"}, uncached{.weight_transpose_cache = false};
    const recipes::Options in_bf16{.skip = {"model.layers.0.*", "*.down_proj"}}, wgrad{.wgrad = "bf16"};
    for (const recipes::Options& of_recipe : {of_head, uncached, in_bf16, wgrad}) {
      if (!of_recipe.weight_transpose_cache && !kernels::is_square(variants.back().recipe.w.tile)) continue;  // refused
      variants.push_back(tiny_options(recipe));
      variants.back().recipe = recipe_named(recipe, of_recipe);
      variants.back().model.tied_head = of_recipe.head == "recipe";
    }
  }
  for (train::EngineOptions& options : variants) {
    SCOPED_TRACE(options.recipe.name);
    options.calibrates = options.recipe.delayed();
    const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
    const auto loss_of = [&](const train::EngineOptions& of) {
      const auto engine = make_engine(of);
      if (of.calibrates) engine->calibrate(1, [&] { return tokens.batch(); });
      return engine->evaluate(tokens.tokens, tokens.targets);
    };
    EXPECT_EQ(loss_of(adapted(options)), loss_of(options));
  }
}

// A frozen weight of an FP8 linear has codes and scales alone, and other frozen parameters have values in the dtype of the
// activations. Only adapters have masters, gradients and moments.
TEST(FrozenModel, TakesTheMemoryOfItsCodesAndAdapters) {
  for (const std::string& recipe : all_recipes()) {
    SCOPED_TRACE(recipe);
    const auto engine = make_engine(adapted(tiny_options(recipe)));
    const bool fp8 = engine->model().recipe().is_fp8(), master = recipe != "fp32";
    const std::size_t width = master ? 2 : 4;
    std::size_t weights = 0, trained = 0;
    const auto rounded = [](std::size_t bytes) {
      return (bytes + Device::kAlignment - 1) / Device::kAlignment * Device::kAlignment;
    };
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      const auto elements = static_cast<std::size_t>(p.elements());
      const bool block_linear = p.spec.frozen && p.spec.name.find("_proj") != std::string::npos;
      EXPECT_EQ(p.spec.quant.has_value(), fp8 && block_linear) << p.spec.name;
      if (!p.spec.quant) weights += rounded(width * elements);
      if (!p.spec.frozen) trained += rounded(4 * elements);
      if (!p.spec.quant) continue;
      EXPECT_FALSE(p.value) << p.spec.name;
      const Quantized& q = p.codes;
      const std::size_t directions = q.tile == ScaleTile::tensor ? 1 : 2;
      weights += directions * rounded(elements) + rounded(q.rowwise_scale_inv.bytes());
      if (q.tile != ScaleTile::tensor) weights += rounded(q.columnwise_scale_inv.bytes());
    }
    const MemoryMeter& use = engine->device().memory();
    const auto bytes = [&](MemoryCategory category) { return use.bytes[static_cast<std::size_t>(category)]; };
    EXPECT_EQ(bytes(MemoryCategory::weights), weights);
    EXPECT_EQ(bytes(MemoryCategory::master_weights), master ? trained : 0);
    EXPECT_EQ(bytes(MemoryCategory::gradients), trained);
    EXPECT_EQ(bytes(MemoryCategory::moments), 2 * trained);
    EXPECT_EQ(use.total_peak, train::measure(engine->options(), DeviceKind::cpu).total());
  }
}

class FrozenOnMeshes : public MeshTest {};

// Wherever a frozen weight is cast, its codes are those of one rank, and they stay.
TEST_F(FrozenOnMeshes, HasTheCodesOfOneRank) {
  const std::vector<Layout> layouts = {
      {.mesh = Mesh({1, 4, 1, 1})},
      {.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
      {.mesh = Mesh({1, 1, 1, 2})},
      {.mesh = Mesh({1, 2, 2, 2}), .weights = Weights::resharded}};
  for (const std::string& recipe : all_recipes()) {
    train::EngineOptions options = adapted(tensor_options(recipe));
    options.model.layers = 1;
    options.model.dim = 128;
    options.model.heads = options.model.kv_heads = 4;
    options.model.head_dim = 128;
    options.model.ffn = 512;
    const auto codes_of = [&](const Layout& layout) {
      Wholes<std::uint8_t> codes;
      std::mutex mutex;
      on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
        take(engine, {.count = 2, .micro_batches = 4});
        const std::lock_guard lock(mutex);
        for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
          if (!p.spec.frozen) continue;
          const Tensor& shard = p.spec.quant ? p.rowwise_shard : p.value_shard;
          codes.add(p, bytes_of_tensor(shard), size_of(shard.dtype));
        }
      });
      return codes;
    };
    const Wholes<std::uint8_t> one = codes_of(kAlone);
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      EXPECT_EQ(codes_of(layout).difference(one), "");
    }
  }
}

// The loss curve of a mesh is that of one rank but for rounding.
TEST_F(FrozenOnMeshes, LearnsAsOneRank) {
  const std::vector<Layout> layouts = {
      {.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded}, {.mesh = Mesh({1, 2, 2, 1})}};
  for (const std::string& recipe : all_recipes()) {
    train::EngineOptions options = adapted(tensor_options(recipe));
    options.model.init_std = 0.1;
    const Steps steps{.count = 7, .micro_batches = 2, .learning_rate = 1e-2};
    const RunState one = run_mesh(options, kAlone, steps);
    EXPECT_LT(one.taken.losses[6], one.taken.losses[0]) << "of the same data";
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      expect_same_curve(run_mesh(options, layout, steps), one);
    }
  }
}

// States of adapters may lie in host memory.
TEST_F(FrozenOnMeshes, IsTheSameWithOffload) {
  for (const Layout& layout : {kAlone, Layout{.mesh = Mesh({1, 2, 1, 1})}}) {
    train::EngineOptions options = adapted(tiny_options("fp8_rowwise"));
    const RunState expected = run_mesh(options, layout, {.count = 3});
    options.storage.offload_slot = 1 << 16;
    expect_same_bits(run_mesh(options, layout, {.count = 3}), expected);
  }
}

// Frozen weights that stay are gathered once, not after every step.
TEST_F(FrozenOnMeshes, IsGatheredOnce) {
  const auto bytes_of_steps = [](int steps) {
    double bytes = 0;
    std::mutex mutex;
    on_engines(adapted(tiny_options("bf16")), {.mesh = Mesh({1, 2, 1, 1})},
               [&](train::Engine& engine, const parallel::Groups& groups) {
                 take(engine, {.count = steps});
                 const std::lock_guard lock(mutex);
                 bytes += groups.shards->traffic().bytes;
               });
    return bytes;
  };
  double model = 0, adapters = 0;
  const auto engine = make_engine(adapted(tiny_options("bf16")));
  for (const parallel::Parameter& p : engine->model().parameters().parameters())
    (p.spec.frozen ? model : adapters) += static_cast<double>(p.elements());
  const double step = bytes_of_steps(3) - bytes_of_steps(2);
  EXPECT_LT(step, 2 * 8 * adapters) << "gradients in F32 and values in BF16, with padding";
  EXPECT_GT(bytes_of_steps(2), 2 * model);
}

TEST(FrozenModel, RefusesTargetsAndRanksThatDoNotFit) {
  train::EngineOptions options = adapted(tiny_options("bf16"), {"q_proj", "w1"});
  EXPECT_TRUE(
      contains(error_of(ExitCode::config, [&] { make_engine(options); }),
               "lora.targets: no linear of a block is called \"w1\"; the blocks have down_proj, gate_proj, k_proj, o_proj, "
               "q_proj, up_proj, v_proj, and \"all-linear\" is all of them"));
  const train::EngineOptions mixture = adapted(mixture_options("bf16"), {"experts.1.w1"});
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { make_engine(mixture); }),
                       "experts.1.w1.fused and model.layers.0.block_sparse_moe.experts.0.w1.fused are adapted in different "
                       "modules, but the experts of a layer are adapted alike"));
  options.adapters = {.rank = 17, .targets = {"k_proj"}};
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { make_engine(options); }),
                       "lora.rank = 17: model.layers.0.self_attn.k_proj is ["));
}

}  // namespace
}  // namespace octet::testing
