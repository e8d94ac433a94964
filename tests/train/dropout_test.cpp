// Dropout of the inputs of adapters. A mask follows from the seed, the step, the linear, the token and the feature. Gradients are
// checked in lora_test.cpp, and steps on meshes in step_of_one_rank_test.cpp.
#include <gtest/gtest.h>

#include "support/any_order.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

train::EngineOptions dropping(const train::EngineOptions& options, double rate = 0.3) {
  train::EngineOptions result = adapted(options);
  result.adapters.dropout = {.rate = rate, .seed = 21};
  return result;
}

std::unique_ptr<train::Engine> dropout_engine(const train::EngineOptions& options) {
  auto engine = make_engine(options);
  randomise_b(*engine);
  return engine;
}

// The loss of a training step and the gradients of all adapters, one after another.
struct TrainedStep {
  double loss = 0;
  std::vector<double> gradients;
  bool operator==(const TrainedStep&) const = default;
};
TrainedStep trained_step(train::Engine& engine, const Tokens& tokens, std::uint32_t step = 1, std::int64_t first_sample = 0) {
  const train::EngineOptions& options = engine.options();
  const auto size = static_cast<std::size_t>(options.micro_batch_size * options.seq_len);
  engine.set_step(step);
  engine.begin_step(static_cast<std::int64_t>(tokens.tokens.size() / size));
  for (std::size_t at = 0; at < tokens.tokens.size(); at += size) {
    engine.forward_backward({.first_sample = first_sample + static_cast<std::int64_t>(at) / options.seq_len,
                             .tokens = std::span(tokens.tokens).subspan(at, size),
                             .targets = std::span(tokens.targets).subspan(at, size),
                             .document_starts = {}},
                            nullptr);
  }
  TrainedStep result;
  engine.stream().copy_to_host(&result.loss, engine.optimizer().loss_total(), sizeof result.loss);
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (p.spec.frozen) continue;
    const std::vector<double> gradient = values_of(p.grad);
    result.gradients.insert(result.gradients.end(), gradient.begin(), gradient.end());
  }
  return result;
}

// What is checked in the order of the settings that a mask is keyed by: the seed, the step, the token.
TEST(Dropout, GivesEveryStepSeedAndTokenMasksOfTheirOwn) {
  train::EngineOptions options = dropping(tiny_options("fp32"));
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  const auto engine = dropout_engine(options);
  const TrainedStep one = trained_step(*engine, tokens);
  EXPECT_EQ(trained_step(*engine, tokens), one);
  EXPECT_NE(trained_step(*engine, tokens, 2).loss, one.loss);
  EXPECT_NE(trained_step(*engine, tokens, 1, 2).loss, one.loss);
  options.adapters.dropout.seed = 22;
  EXPECT_NE(trained_step(*dropout_engine(options), tokens).loss, one.loss);
  options.adapters.dropout.rate = 0;
  const TrainedStep whole = trained_step(*dropout_engine(options), tokens);
  EXPECT_NE(whole.loss, one.loss);
  options.adapters.dropout = {};
  EXPECT_EQ(trained_step(*dropout_engine(options), tokens), whole);
}

// The mean over many masks is the adapter without dropout, where the loss is nearly linear in what an adapter adds.
TEST(Dropout, KeepsTheMeanOfWhatAnAdapterAdds) {
  train::EngineOptions options = adapted(tiny_options("fp64"), {"down_proj"});
  options.model.layers = 1;
  options.adapters.alpha = 4e-3;
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  const auto loss_of = [&](const train::EngineOptions& of, std::uint32_t step) {
    return trained_step(*dropout_engine(of), tokens, step).loss;
  };
  train::EngineOptions without = options;
  without.adapters.alpha = 0;
  const double zero = loss_of(without, 1), change = loss_of(options, 1) - zero;
  options.adapters.dropout = {.rate = 0.5, .seed = 21};
  const auto engine = dropout_engine(options);
  double sum = 0, squares = 0;
  constexpr int kSteps = 400;
  for (int step = 1; step <= kSteps; ++step) {
    const double of_step = trained_step(*engine, tokens, static_cast<std::uint32_t>(step)).loss - zero;
    sum += of_step;
    squares += of_step * of_step;
  }
  const double mean = sum / kSteps, deviation = std::sqrt(squares / kSteps - mean * mean);
  EXPECT_GT(deviation, 0.01 * std::abs(change));
  EXPECT_NEAR(mean, change, 6 * deviation / std::sqrt(kSteps));
}

TEST(Dropout, IsForTrainingAlone) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_current"}) {
    train::EngineOptions options = dropping(mixture_options(recipe));
    options.calibrates = options.recipe.delayed();
    const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
    const auto loss_and_scales = [&](const train::EngineOptions& of) {
      const auto engine = dropout_engine(of);
      if (of.calibrates) engine->calibrate(1, [&] { return tokens.batch(); });
      std::map<std::string, std::vector<std::uint8_t>> scales;
      for (const auto& [name, tensor, held] : engine->model().scales().tensors()) scales[name] = bytes_of_tensor(tensor);
      return std::pair(engine->evaluate(tokens.tokens, tokens.targets), scales);
    };
    train::EngineOptions without = options;
    without.adapters.dropout = {};
    EXPECT_EQ(loss_and_scales(options), loss_and_scales(without)) << recipe;
  }
}

TEST(Dropout, HasTheSameBitsInEveryKindOfCheckpointing) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_rowwise", "mxfp8"}) {
    for (train::EngineOptions options : {dropping(tiny_options(recipe)), dropping(mixture_options(recipe))}) {
      const Tokens tokens = random_tokens(2 * options.seq_len * options.micro_batch_size, options.model.vocab);
      const TrainedStep expected = trained_step(*dropout_engine(options), tokens);
      for (const nn::Checkpointing mode : {nn::Checkpointing::selective, nn::Checkpointing::full}) {
        options.checkpointing = mode;
        EXPECT_EQ(trained_step(*dropout_engine(options), tokens), expected) << recipe << ", mode " << static_cast<int>(mode);
      }
    }
  }
}

TEST(Dropout, DoesNotDependOnTheDivisionIntoMicroBatches) {
  for (train::EngineOptions options : {dropping(tiny_options("fp64")), dropping(mixture_options("fp64"))}) {
    const double bound = 2 * gamma(4096, kUnitRoundoffF64);  // as in step_of_one_rank_test.cpp
    const Tokens tokens = random_tokens(4 * options.seq_len, options.model.vocab);
    options.micro_batch_size = 4;
    const TrainedStep expected = trained_step(*dropout_engine(options), tokens);
    for (const std::int64_t size : {1, 2}) {
      options.micro_batch_size = size;
      const TrainedStep actual = trained_step(*dropout_engine(options), tokens);
      EXPECT_NEAR(actual.loss, expected.loss, bound * expected.loss);
      EXPECT_TRUE(near_norm(actual.gradients, expected.gradients, bound)) << "micro-batches of " << size;
    }
  }
}

class DropoutOnMeshes : public MeshTest {};

TEST_F(DropoutOnMeshes, LearnsAsOneRank) {
  const Layout sharded{.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  for (const std::string& recipe : all_recipes()) {
    SCOPED_TRACE(recipe);
    train::EngineOptions options = dropping(tensor_options(recipe), 0.1);
    options.model.init_std = 0.1;
    const Steps steps{.count = 7, .micro_batches = 2, .learning_rate = 1e-2};
    const RunState one = run_mesh(options, kAlone, steps);
    EXPECT_LT(one.taken.losses[6], one.taken.losses[0]) << "of the same data";
    expect_same_curve(run_mesh(options, sharded, steps), one);
  }
}

TEST_F(DropoutOnMeshes, WaitsForWhatItReads) {
  Layout lanes{.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded};
  lanes.lanes = 2;
  const Layout chunks{.mesh = Mesh({1, 1, 2, 1}, 1, {.count = 2, .chunks = 2})};
  train::EngineOptions deep = dropping(context_options("fp8_delayed"));
  deep.model.layers = 4;
  for (const auto& [options, layout] : {std::pair(dropping(mixture_options("fp8_delayed")), lanes), {deep, chunks}}) {
    const Steps steps{.count = 2, .micro_batches = 2 * layout.lanes * layout.mesh.data_coordinates()};
    expect_same_bits_in_any_order(options, layout, steps, {0.0, 0.5});
  }
}

}  // namespace
}  // namespace octet::testing
