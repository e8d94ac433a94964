// Tests data.document_mask on a GPU in whole steps.
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/gradients.h"
#include "octet/tensor/host_tensor.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

constexpr std::int64_t kLength = 70;

train::EngineOptions options_of(const std::string& recipe, std::int64_t window = 0) {
  train::EngineOptions options = tiny_options(recipe);
  options.model.dim = 64;
  options.model.head_dim = 16;
  options.model.sliding_window = window;
  options.model.max_position = kLength;
  options.seq_len = kLength;
  options.document_mask = true;
  return options;
}

Tokens packed(const train::EngineOptions& options, std::uint32_t subject = 0) {
  const std::int64_t count = options.seq_len * options.micro_batch_size;
  Tokens tokens = random_tokens(count, options.model.vocab, subject);
  tokens.document_starts = random_document_starts(count, options.seq_len, subject);
  return tokens;
}

// Returns an engine that computes in FP64, with the weights of `from` rounded to BF16.
std::unique_ptr<train::Engine> exact_engine(train::EngineOptions options, train::Engine& from) {
  options.recipe = recipe_named("fp64");
  auto exact = make_engine(options);
  auto source = from.model().parameters().parameters().begin();
  for (parallel::Parameter& p : exact->model().parameters().parameters()) {
    const std::vector<double> values = values_of((source++)->primary());
    for (std::size_t i = 0; i < values.size(); ++i) {
      p.value.as<double>()[i] = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(values[i]))));
    }
  }
  return exact;
}

// The GPU rounds as often as the CPU, in another order. Its gradients must be about as far from those of exact arithmetic.
TEST(GpuDocumentMask, GradientsAreAsNearAsRoundingAllows) {
  for (const std::int64_t window : {0, 9}) {
    const train::EngineOptions options = options_of("bf16", window);
    const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
    const auto exact = exact_engine(options, *cpu);
    for (std::uint32_t subject = 0; subject < 3; ++subject) {
      const Tokens tokens = packed(options, subject);
      const std::vector<double> on_cpu = gradients(*cpu, tokens), on_gpu = gradients(*gpu, tokens),
                                truth = gradients(*exact, tokens);
      EXPECT_LE(distance(on_gpu, on_cpu), 1.5 * distance(on_cpu, truth)) << "window " << window;
      EXPECT_LE(distance(on_gpu, truth), 1.25 * distance(on_cpu, truth)) << "window " << window;
      Tokens open = tokens;
      open.document_starts.clear();
      EXPECT_GT(distance(gradients(*gpu, open), truth), 10 * distance(on_cpu, truth))
          << "the gradients do not depend on the documents";
    }
  }
}

TEST(GpuDocumentMask, LearnsAlike) {
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    const train::EngineOptions options = options_of(recipe);
    const Tokens tokens = packed(options);
    const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
    SCOPED_TRACE(recipe);
    expect_to_learn_alike(*cpu, *gpu, tokens);
  }
}

// The plan must hold for any documents.
TEST(GpuDocumentMask, TakesThePlannedMemoryToTheByte) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::full}) {
    train::EngineOptions options = options_of("bf16");
    options.checkpointing = mode;
    const train::MemoryPlan plan = train::measure(options, DeviceKind::cuda);
    const auto gpu = make_engine(options, 7, DeviceKind::cuda);
    const std::size_t before = gpu->device().memory().allocations;
    for (std::uint32_t subject = 0; subject < 3; ++subject) {
      Tokens tokens = packed(options, subject);
      if (subject == 2) {  // every token is a document
        tokens.document_starts.resize(tokens.tokens.size());
        for (std::size_t i = 0; i < tokens.tokens.size(); ++i) tokens.document_starts[i] = static_cast<std::int32_t>(i);
      }
      gradients(*gpu, tokens);
      gpu->apply(1e-3, subject + 1);
      gpu->evaluate(tokens.tokens, tokens.targets, tokens.document_starts);
    }
    EXPECT_EQ(gpu->device().memory().allocations, before) << "a step allocated memory";
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      EXPECT_EQ(gpu->device().memory().peak[i], plan.bytes[i]) << name_of(static_cast<MemoryCategory>(i));
    }
    EXPECT_EQ(gpu->scratch().high_water(), gpu->scratch().capacity());
  }
}

}  // namespace
}  // namespace octet::testing
