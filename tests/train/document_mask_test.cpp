// With data.document_mask, no token sees another document.
#include <gtest/gtest.h>

#include "support/bounds.h"
#include "support/errors.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

constexpr std::int64_t kLength = 24;

train::EngineOptions masked(const std::string& recipe, bool mask = true) {
  train::EngineOptions options = tiny_options(recipe);
  options.micro_batch_size = 1;
  options.document_mask = mask;
  return options;
}

struct Outcome {
  double loss;
  std::vector<std::vector<double>> gradients;
};

// Returns the loss and the gradients of one sequence, without an optimizer step.
Outcome outcome_of(const train::EngineOptions& options, const Tokens& tokens) {
  const auto engine = make_engine(options);
  engine->begin_step();
  engine->forward_backward(tokens.batch(), nullptr);
  Outcome outcome{};
  for (const parallel::Parameter& p : engine->model().parameters().parameters())
    outcome.gradients.push_back(values_of(p.grad_shard));
  outcome.loss = engine->optimizer().loss_total()[0];
  return outcome;
}

// Gives targets to the tokens in [from, to) only.
Tokens scored(Tokens tokens, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = 0; i < kLength; ++i) {
    if (i < from || i >= to) tokens.targets[static_cast<std::size_t>(i)] = -100;
  }
  return tokens;
}

// With the mask, tokens in other documents must not change a single bit of a document's loss and gradients. Without it, they do.
TEST(DocumentMask, OtherDocumentsDoNotMatter) {
  for (const std::string recipe : {"fp32", "bf16"}) {
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      Tokens one = scored(random_tokens(kLength, 32, 1), 10, 17);
      one.document_starts = {0, 10, 17};
      Tokens other = one;
      for (const std::size_t i : {3u, 9u, 20u}) other.tokens[i] = (other.tokens[i] + 5) % 32;
      for (const bool mask : {true, false}) {
        train::EngineOptions options = masked(recipe, mask);
        options.checkpointing = mode;
        const Outcome a = outcome_of(options, one), b = outcome_of(options, other);
        EXPECT_EQ(a.loss == b.loss, mask) << recipe;
        EXPECT_EQ(a.gradients == b.gradients, mask) << recipe;
      }
    }
  }
}

// Computes each document as the beginning of a sequence of its own, where positions begin with 0. The bound is of FP64, so a
// position that went on through the sequence would fail, although RoPE depends on distances only: its table is in FP32.
void documents_are_as_if_alone(const models::DecoderConfig& model) {
  const double bound = gamma(256, kUnitRoundoffF64);
  const auto masked = [&](const std::string& recipe, bool mask = true) {
    train::EngineOptions options = octet::testing::masked(recipe, mask);
    options.model = model;
    return options;
  };
  Tokens packed = random_tokens(kLength, 32, 2);
  packed.document_starts = {0, 1, 9, 20};
  const Outcome whole = outcome_of(masked("fp64"), packed);
  Outcome sum{};
  for (std::size_t d = 0; d < 4; ++d) {
    const std::int64_t begin = packed.document_starts[d], end = d + 1 < 4 ? packed.document_starts[d + 1] : kLength;
    Tokens alone = random_tokens(kLength, 32, 3);
    for (std::int64_t i = begin; i < end; ++i) {
      alone.tokens[static_cast<std::size_t>(i - begin)] = packed.tokens[static_cast<std::size_t>(i)];
      alone.targets[static_cast<std::size_t>(i - begin)] = packed.targets[static_cast<std::size_t>(i)];
    }
    const Outcome part = outcome_of(masked("fp64", false), scored(alone, 0, end - begin));
    sum.loss += part.loss;
    sum.gradients.resize(part.gradients.size());
    for (std::size_t p = 0; p < part.gradients.size(); ++p) {
      sum.gradients[p].resize(part.gradients[p].size());
      for (std::size_t i = 0; i < part.gradients[p].size(); ++i) sum.gradients[p][i] += part.gradients[p][i];
    }
  }
  EXPECT_NEAR(whole.loss, sum.loss, bound * sum.loss);
  for (std::size_t p = 0; p < sum.gradients.size(); ++p) EXPECT_TRUE(near_norm(whole.gradients[p], sum.gradients[p], bound)) << p;
  EXPECT_GT(std::abs(outcome_of(masked("fp64", false), packed).loss - sum.loss), 1e3 * bound * sum.loss);
}

TEST(DocumentMask, DocumentsAreAsIfAloneWithRope) { documents_are_as_if_alone(tiny_config()); }
TEST(DocumentMask, DocumentsAreAsIfAloneWithLearnedPositions) { documents_are_as_if_alone(tiny_gpt_neo_config()); }

// The mask also holds for an evaluation with fewer rows than a micro-batch.
TEST(DocumentMask, EvaluatesAsItTrains) {
  train::EngineOptions options = masked("fp64");
  Tokens tokens = random_tokens(kLength, 32, 4);
  tokens.document_starts = {0, 5, 6};
  const Outcome trained = outcome_of(options, tokens);
  options.micro_batch_size = 3;
  const auto engine = make_engine(options);
  const double bound = gamma(256, kUnitRoundoffF64);
  EXPECT_NEAR(engine->evaluate(tokens.tokens, tokens.targets, tokens.document_starts)[0], trained.loss, bound * trained.loss);
}

TEST(DocumentMask, ThePlanIsExact) {
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    const train::EngineOptions with = masked(recipe), without = masked(recipe, false);
    const auto engine = make_engine(with);
    Tokens tokens = random_tokens(kLength, 32, 5);
    tokens.document_starts = {0, 3};
    engine->begin_step();
    engine->forward_backward(tokens.batch(), nullptr);
    engine->apply(1e-3, 1);
    EXPECT_EQ(engine->device().memory().total_peak, train::measure(with, DeviceKind::cpu).total());
    const auto workspace = [](const train::EngineOptions& options) {
      return train::measure(options, DeviceKind::cpu).bytes[static_cast<std::size_t>(MemoryCategory::workspace)];
    };
    EXPECT_GE(workspace(with), workspace(without) + 2 * 4 * kLength) << "first keys and positions";
  }
}

// The program says so before any step, and a plan says so on a machine without a GPU.
TEST(DocumentMask, IsNotDeterministicOnCuda) {
  train::EngineOptions options = masked("bf16");
  options.model.head_dim = 16;
  EXPECT_GT(train::measure(options, DeviceKind::cuda).total(), 0u);
  options.deterministic = true;
  EXPECT_GT(train::measure(options, DeviceKind::cpu).total(), 0u);
  EXPECT_TRUE(
      contains(error_of(ExitCode::config, [&] { train::measure(options, DeviceKind::cuda); }), "with run.deterministic = true"));
}

}  // namespace
}  // namespace octet::testing
