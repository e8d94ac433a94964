// A token affects no logit before it, and a sequence none of another one, to the bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "train/meshes.h"

namespace octet::testing {
namespace {

// The logits of a training pass: the product of a head in FP8.
class HeadProduct final : public nn::Watch {
 public:
  void operand(const nn::Scope&, std::string_view, Role, const Tensor&, const Quantized&) override {}
  void product(const nn::Scope& scope, std::string_view linear, std::string_view which, const kernels::Gemm& gemm) override {
    if (linear != "lm_head" || which != "y") return;
    const ArenaScope temporaries(scope.scratch);
    const Tensor value = nn::run_alone(scope, gemm);
    if (scope.stream.kind() == DeviceKind::cpu) logits = values_of(value);
  }
  void attention(const nn::Scope&, std::string_view, const Tensor&) override {}
  std::vector<double> logits;
};

class Causal : public MeshTest, public ::testing::WithParamInterface<std::string> {
 protected:
  Causal() {
    options_.recipe = recipe_named(GetParam(), {.head = "recipe"});
    options_.calibrates = options_.recipe.delayed();
    options_.whole_logits = true;
    options_.watch = &head_;
    engine_ = make_engine(options_);
    outlier();
    Tokens tokens = random_tokens(count(), options_.model.vocab);
    if (options_.calibrates) engine_->calibrate(1, [&] { return tokens.batch(); });
  }
  std::int64_t count() const { return options_.seq_len * options_.micro_batch_size; }

  // Token 0 has values far larger than those of others, so that it decides every scale that it has a part in.
  void outlier() {
    auto* const embedding = engine_->model().parameters().parameters().front().primary().as<float>();
    for (std::int64_t i = 0; i < options_.model.dim; ++i) embedding[i] *= i % 5 == 0 ? 200.0f : 1.0f;
    engine_->refresh();
  }
  std::vector<double> evaluated(const std::vector<std::int32_t>& tokens) { return values_on(*engine_, engine_->logits(tokens)); }
  std::vector<double> trained(const std::vector<std::int32_t>& tokens) {
    engine_->begin_step();
    engine_->forward_backward({.first_sample = 0, .tokens = tokens, .targets = tokens, .document_starts = {}}, &head_);
    return head_.logits;
  }
  // Returns the logits of the first `rows` tokens.
  std::vector<double> first(std::vector<double> logits, std::int64_t rows) const {
    logits.resize(static_cast<std::size_t>(rows * options_.model.vocab));
    return logits;
  }

  HeadProduct head_;
  train::EngineOptions options_ = tiny_options("bf16");
  std::unique_ptr<train::Engine> engine_;
};

TEST_P(Causal, TheLastTokenChangesNothingBeforeItself) {
  std::vector<std::int32_t> tokens = random_tokens(count(), options_.model.vocab).tokens;
  std::replace(tokens.begin(), tokens.end(), 0, 1);
  std::vector<std::int32_t> other = tokens;
  other.back() = 0;
  EXPECT_EQ(first(evaluated(tokens), count() - 1), first(evaluated(other), count() - 1));
  EXPECT_NE(evaluated(tokens), evaluated(other));
  if (!options_.recipe.is_fp8()) return;  // whose training passes compute as evaluation does
  const bool same = first(trained(tokens), count() - 1) == first(trained(other), count() - 1);
  EXPECT_EQ(same, GetParam() != "fp8_current") << "current scaling alone takes one scale from all tokens";
}

// Neither on another sequence of the batch, nor on how much room there is behind the last token.
TEST_P(Causal, EvaluationOfASequenceDependsOnNothingElse) {
  const std::int64_t length = options_.seq_len;
  std::vector<std::int32_t> tokens = random_tokens(count(), options_.model.vocab).tokens;
  std::replace(tokens.begin(), tokens.end(), 0, 1);
  const std::vector<double> expected = first(evaluated(tokens), length);
  std::vector<std::int32_t> beside = tokens;
  std::fill(beside.begin() + length, beside.end(), 0);
  EXPECT_EQ(first(evaluated(beside), length), expected);
  EXPECT_EQ(evaluated({tokens.begin(), tokens.begin() + length}), expected);
  EXPECT_EQ(evaluated({tokens.begin(), tokens.begin() + 5}), first(expected, 5));

  const auto loss = [&](const std::vector<std::int32_t>& of) {
    std::vector<std::int32_t> targets = of;
    std::fill(targets.begin() + length, targets.end(), kernels::kIgnoredTarget);
    return engine_->evaluate(of, targets);
  };
  EXPECT_EQ(loss(beside), loss(tokens));
  EXPECT_EQ(loss({tokens.begin(), tokens.begin() + length}), loss(tokens));
}

INSTANTIATE_TEST_SUITE_P(Recipes, Causal, ::testing::ValuesIn(all_precisions()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace octet::testing
