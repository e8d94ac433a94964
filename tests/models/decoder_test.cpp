#include "octet/models/decoder/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "octet/base/threads.h"
#include "octet/models/registry.h"
#include "support/errors.h"
#include "support/grad_check.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

// Returns the bytes of every gradient after one micro-batch.
std::vector<std::vector<std::uint8_t>> gradients(train::Engine& engine, const Tokens& tokens) {
  engine.begin_step();
  engine.forward_backward(tokens.batch(), nullptr);
  std::vector<std::vector<std::uint8_t>> result;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) result.push_back(bytes_of_tensor(p.grad));
  return result;
}

TEST(TinyModels, AreOfEveryFamily) {
  std::set<std::string> found = {"mistral", "mixtral", "qwen2"};  // Llama with a window or biases; mixtures have Qwen3-MoE's code
  for (const NamedModel& model : tiny_models()) found.insert(model.config.family);
  for (const std::string& family : models::model_types()) EXPECT_TRUE(found.contains(family)) << family;
}

class DecoderGradient : public ::testing::TestWithParam<NamedModel> {};

// Checks every parameter of the whole model in FP64: embedding, norms, QKV, RoPE, attention, feed-forward layers, head and loss.
TEST_P(DecoderGradient, AgreesWithFiniteDifferences) {
  train::EngineOptions options = tiny_options("fp64");
  options.model = GetParam().config;
  const auto engine = make_engine(options);
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  gradients(*engine, tokens);
  for (parallel::Parameter& p : engine->model().parameters().parameters()) {
    std::vector<double> gradient(p.grad.as<double>(), p.grad.as<double>() + p.elements());
    EXPECT_TRUE(gradient_agrees({.name = p.spec.name,
                                 .x = p.value.as<double>(),
                                 .gradient = gradient.data(),
                                 .count = p.elements(),
                                 .f = [&] { return engine->evaluate(tokens.tokens, tokens.targets)[0]; },
                                 .samples = 24,
                                 .noise = 1024 * std::numeric_limits<double>::epsilon()}));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderGradient, ::testing::ValuesIn(tiny_models()),
                         [](const auto& param) { return param.param.name; });

// A recipe with its settings, and the other options that decide how a model computes and stores its tensors.
struct Variant {
  std::string name, recipe;
  recipes::Options options = {};
  bool tied_head = false;
  DType grad_dtype = DType::f32;
  std::optional<models::DecoderConfig> model = {};
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

train::EngineOptions options_of(const Variant& variant) {
  train::EngineOptions options = tiny_options(variant.recipe);
  options.recipe = recipe_named(variant.recipe, variant.options);
  if (variant.model) options.model = *variant.model;
  options.model.tied_head = variant.tied_head;
  options.storage.grad = variant.grad_dtype;
  return options;
}

std::vector<Variant> variants() {
  std::vector<Variant> result;
  for (const std::string& name : all_recipes()) {
    result.push_back({.name = name, .recipe = name});
    if (name.find("fp8") == std::string::npos) continue;
    result.push_back({.name = name + "_head", .recipe = name, .options = {.head = "recipe"}});
    result.push_back({.name = name + "_tied_head", .recipe = name, .options = {.head = "recipe"}, .tied_head = true});
    result.push_back({.name = name + "_wgrad", .recipe = name, .options = {.wgrad = "bf16", .head = "recipe"}});
  }
  for (const std::string name : {"fp8_delayed", "fp8_current"}) {
    result.push_back({.name = name + "_e4m3", .recipe = name, .options = {.format = "e4m3"}});
  }
  result.push_back(
      {.name = "fp8_delayed_skip", .recipe = "fp8_delayed", .options = {.skip = {"model.layers.0.*", "*.down_proj"}}});
  result.push_back({.name = "fp8_block_skip",
                    .recipe = "fp8_block",
                    .options = {.head = "recipe", .skip = {"lm_head", "model.layers.1.self_attn.q_proj.fused"}}});
  for (const std::string name : {"bf16", "fp8_delayed", "fp8_rowwise"}) {
    result.push_back({.name = name + "_bf16_gradients", .recipe = name, .grad_dtype = DType::bf16});
  }
  result.push_back({.name = "bf16_tied_head", .recipe = "bf16", .tied_head = true});
  result.push_back({.name = "fp64", .recipe = "fp64"});
  for (const std::string& name : all_recipes()) {
    for (const bool parallel : {true, false}) {
      result.push_back({.name = concat("gpt_neox_", parallel ? "parallel_" : "sequential_", name),
                        .recipe = name,
                        .tied_head = !parallel,
                        .model = tiny_gpt_neox_config(parallel)});
    }
  }
  for (const std::string& name : all_recipes()) {
    result.push_back({.name = "olmo2_" + name, .recipe = name, .model = tiny_olmo2_config()});
    result.push_back({.name = "phi3_" + name, .recipe = name, .model = tiny_phi3_config()});
  }
  result.push_back(
      {.name = "gpt_neox_wgrad", .recipe = "fp8_rowwise", .options = {.wgrad = "bf16"}, .model = tiny_gpt_neox_config(true)});
  return result;
}

class EveryRecipe : public ::testing::TestWithParam<Variant> {
 protected:
  train::EngineOptions options = options_of(GetParam());
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
};

TEST_P(EveryRecipe, CheckpointingGivesTheSameGradientsToTheBit) {
  const auto expected = gradients(*make_engine(options), tokens);
  for (const nn::Checkpointing mode : {nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    EXPECT_EQ(gradients(*make_engine(options), tokens), expected) << "mode " << static_cast<int>(mode);
  }
}

TEST_P(EveryRecipe, CheckpointingAndEvaluationRecordNoAmax) {
  const auto state = [&](nn::Checkpointing mode, int evaluations) {
    options.checkpointing = mode;
    const auto engine = make_engine(options);
    for (std::uint32_t step = 1; step <= 3; ++step) {
      engine->begin_step();
      engine->forward_backward(tokens.batch(), nullptr);
      // Evaluates other tokens, whose amaxes would show if they were recorded.
      const Tokens others = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab, step);
      for (int i = 0; i < evaluations; ++i) engine->evaluate(others.tokens, others.targets);
      engine->apply(1e-2, step);
    }
    std::vector<std::vector<std::uint8_t>> result;
    for (const auto& named : engine->model().scales().tensors()) result.push_back(bytes_of_tensor(named.tensor));
    return result;
  };
  const auto expected = state(nn::Checkpointing::none, 0);
  EXPECT_EQ(state(nn::Checkpointing::none, 1), expected);
  EXPECT_EQ(state(nn::Checkpointing::selective, 1), expected);
  EXPECT_EQ(state(nn::Checkpointing::full, 1), expected);
}

TEST_P(EveryRecipe, BitsDoNotDependOnTheNumberOfThreads) {
  set_num_threads(1);
  const auto expected = gradients(*make_engine(options), tokens);
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    EXPECT_EQ(gradients(*make_engine(options), tokens), expected) << threads << " threads";
  }
  set_num_threads(available_cores());
}

TEST_P(EveryRecipe, TwoMicroBatchesAddUp) {
  const auto whole = make_engine(options);
  gradients(*whole, tokens);
  options.micro_batch_size = 1;
  const auto halves = make_engine(options);
  halves->begin_step();
  const auto half = static_cast<std::size_t>(options.seq_len);
  for (const std::size_t begin : {std::size_t{0}, half}) {
    halves->forward_backward(
        {.tokens = std::span(tokens.tokens).subspan(begin, half), .targets = std::span(tokens.targets).subspan(begin, half)},
        nullptr);
  }
  double sums[2][2];
  whole->stream().copy_to_host(sums[0], whole->optimizer().loss_total(), sizeof sums[0]);
  halves->stream().copy_to_host(sums[1], halves->optimizer().loss_total(), sizeof sums[1]);
  EXPECT_EQ(sums[0][1], sums[1][1]);
  // The order of FP32 sums depends on the size of a micro-batch. Some BF16 activations therefore round to a neighbour, which is
  // at most 2^-8 away. In FP8 the scales depend on it too, so gradients differ by other roundings of at most 2^-3. A gradient
  // that lacked one of the two halves would be off by 0.7.
  const bool fp8 = options.recipe.is_fp8(), exact = options.recipe.compute <= Compute::fp32;
  const double limit = fp8 ? 0.3 : options.storage.grad == DType::bf16 ? 0x1p-6 : exact ? 0x1p-16 : 0x1p-8;
  EXPECT_NEAR(sums[0][0], sums[1][0], (fp8 ? 0x1p-4 : exact ? 0x1p-20 : 0x1p-8) * sums[0][0]);
  const auto& all = whole->model().parameters().parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& other = halves->model().parameters().parameters()[i];
    EXPECT_TRUE(near_norm(values_of(other.grad), values_of(all[i].grad), limit)) << all[i].spec.name;
  }
}

TEST_P(EveryRecipe, GradientsAreThoseOfFp32UpToTheRoundingOfOperands) {
  const auto engine = make_engine(options);
  gradients(*engine, tokens);
  train::EngineOptions exact_options = tiny_options("fp32");
  exact_options.model = options.model;
  const auto exact = make_engine(exact_options);
  gradients(*exact, tokens);
  // The errors are norm-wise and grow over the layers of this model. BF16 errs by about 2^-8 in each operation, and a product of
  // E4M3 and E5M2 operands by 3% to 7%. A gradient that misses a term or a factor is off by far more.
  const double limit = options.recipe.is_fp8() ? 0.35 : 0.05;
  for (std::size_t i = 0; i < engine->model().parameters().parameters().size(); ++i) {
    const parallel::Parameter& p = engine->model().parameters().parameters()[i];
    EXPECT_TRUE(near_norm(values_of(p.grad), values_of(exact->model().parameters().parameters()[i].grad), limit)) << p.spec.name;
  }
}

// A step with an infinite or NaN gradient must not change weights, moments, codes, scales and histories.
TEST_P(EveryRecipe, ASkippedStepChangesNoBit) {
  for (const bool master : {true, false}) {
    options.storage.master_weights = master;
    const auto engine = make_engine(options);
    const auto state = [&] {
      std::vector<std::vector<std::uint8_t>> result;
      for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
        for (const Tensor& t : {p.master, p.value, p.moment1, p.moment2, p.codes.rowwise, p.codes.columnwise,
                                p.codes.rowwise_scale_inv, p.codes.columnwise_scale_inv}) {
          if (t) result.push_back(bytes_of_tensor(t));
        }
      }
      for (const auto& named : engine->model().scales().tensors()) result.push_back(bytes_of_tensor(named.tensor));
      result.push_back(bytes_of_tensor(engine->optimizer().updates()));
      return result;
    };
    std::vector<std::vector<std::uint8_t>> before = state();
    for (std::uint32_t step = 1; step <= 5; ++step) {
      const bool bad = step == 1 || step == 4;
      gradients(*engine, tokens);
      const Tensor& grad = engine->model().parameters().parameters()[2].grad;
      visit_float(grad.dtype, [&]<class T>() {
        if (bad) grad.as<T>()[5] = static_cast<T>(step == 1 ? HUGE_VALF : NAN);
      });
      engine->apply(1e-2, step);
      auto after = state();
      EXPECT_EQ(after == before, bad) << "step " << step;
      before = std::move(after);
    }
  }
}

TEST_P(EveryRecipe, ThePlanIsWhatTheEngineTakesToTheByte) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    for (const bool master : {true, false}) {
      options.checkpointing = mode;
      options.storage.master_weights = master;
      options.storage.moments = master ? DType::f32 : DType::bf16;
      const train::MemoryPlan plan = train::measure(options, DeviceKind::cpu);
      const auto engine = make_engine(options);
      const std::size_t before = engine->device().memory().allocations;
      for (std::uint32_t step = 1; step <= 2; ++step) {
        engine->begin_step();
        engine->forward_backward(tokens.batch(), nullptr);
        engine->apply(1e-3, step);
        engine->evaluate(tokens.tokens, tokens.targets);
      }
      EXPECT_EQ(engine->device().memory().allocations, before) << "a step allocated memory";
      for (std::size_t i = 0; i < kMemoryCategories; ++i) {
        EXPECT_EQ(engine->device().memory().peak[i], plan.bytes[i]) << name_of(static_cast<MemoryCategory>(i));
      }
      // The arenas must not be larger than needed, by even one byte.
      EXPECT_EQ(engine->stash().high_water(), engine->stash().capacity());
      EXPECT_EQ(engine->scratch().high_water(), engine->scratch().capacity());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, ::testing::ValuesIn(variants()),
                         [](const auto& param) { return param.param.name; });

TEST(Decoder, CountsItsParametersAndOperations) {
  for (const auto& [name, config] : tiny_models()) {
    models::Decoder model(config, recipe_named("bf16"));
    std::int64_t elements = 0;
    for (const parallel::Parameter& p : model.parameters().parameters()) elements += p.elements();
    EXPECT_EQ(elements, config.parameters()) << name;
    // For one micro-batch, the meta device counts 6 operations for each weight and token, and those of causal attention.
    train::EngineOptions options = tiny_options("bf16");
    options.model = config;
    const double tokens = static_cast<double>(options.seq_len * options.micro_batch_size);
    const double counted = train::measure(options, DeviceKind::cpu).step.flops / tokens;
    EXPECT_GT(counted, config.train_flops_per_token(options.seq_len)) << name;
    if (config.experts > 0) continue;  // rows that fill up the tiles of experts are most of so few
    EXPECT_LT(counted, 1.5 * config.train_flops_per_token(options.seq_len)) << name;
  }
}

TEST(Decoder, CountsWhatAWindowLeaves) {
  train::EngineOptions options = tiny_options("bf16");
  options.seq_len = 64;
  const auto tokens = static_cast<double>(options.seq_len * options.micro_batch_size);
  const double whole = train::measure(options, DeviceKind::cpu).step.flops / tokens;
  models::DecoderConfig& model = options.model;
  const double claimed = model.train_flops_per_token(options.seq_len);
  for (const std::int64_t window : {1, 16, 63, 64, 100}) {
    model.sliding_window = window;
    // Counts the hidden pairs one by one. Each saves 14 operations for each head and dim, or 12 without the recomputation in
    // attention's backward.
    double hidden = 0;
    for (std::int64_t i = 0; i < options.seq_len; ++i) hidden += static_cast<double>(std::max<std::int64_t>(0, i + 1 - window));
    const double of_head =
        hidden / static_cast<double>(options.seq_len) * static_cast<double>(model.layers * model.heads * model.head_dim);
    EXPECT_DOUBLE_EQ(train::measure(options, DeviceKind::cpu).step.flops / tokens, whole - 14 * of_head) << window;
    // The formula takes the area of the triangle and so leaves out half a pair for each token with itself.
    const double aside = 12 * 0.5 * static_cast<double>(model.layers * model.heads * model.head_dim);
    EXPECT_NEAR(model.train_flops_per_token(options.seq_len), claimed - 12 * of_head, aside) << window;
  }
}

TEST(Decoder, SkipKeepsLayersInBf16AndRefusesPatternsThatMissOrSplit) {
  recipes::Options options;
  options.skip = {"model.layers.0.*"};
  models::Decoder model(tiny_config(), recipe_named("fp8_current", options));
  for (const nn::LinearWeight* linear : model.linears()) {
    const bool first = linear->name().rfind("model.layers.0.", 0) == 0 || linear->name() == "lm_head";
    EXPECT_EQ(linear->compute(), first ? Compute::bf16 : Compute::fp8) << linear->name();
  }
  const auto message = [](const std::string& pattern) {
    recipes::Options bad;
    bad.skip = {pattern};
    return error_of(ExitCode::config, [&] { models::Decoder refused(tiny_config(), recipe_named("fp8_current", bad)); });
  };
  EXPECT_TRUE(contains(message("model.layers.7.*"), "precision.skip: \"model.layers.7.*\" matches no linear layer"));
  EXPECT_TRUE(contains(message("*.q_proj"), "matches a part of model.layers.0.self_attn.q_proj.fused but not"));
}

// A pattern may name a fused linear as tables and messages print it.
TEST(Decoder, SkipTakesTheNameOfAFusedLinear) {
  recipes::Options options;
  options.skip = {"model.layers.1.mlp.gate_proj.fused"};
  models::Decoder model(tiny_config(), recipe_named("fp8_rowwise", options));
  int bf16 = 0;
  for (const nn::LinearWeight* linear : model.linears()) bf16 += linear->compute() == Compute::bf16;
  EXPECT_EQ(bf16, 2);  // this linear and the head
}

TEST(Decoder, RefusesWeightsThatTheRecipeCannotQuantise) {
  models::DecoderConfig config = tiny_config();
  config.ffn = 40;
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { models::Decoder model(config, recipe_named("fp8_block")); }),
                       "model.layers.0.mlp.down_proj: a weight [32, 40]"));
}

}  // namespace
}  // namespace octet::testing
