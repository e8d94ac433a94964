// If the loss or a gradient is not finite, the optimizer step changes no bit of the state, in any recipe.
#include "octet/train/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "octet/base/threads.h"
#include "octet/train/model_files.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

// Returns everything that a step may change, by name.
std::map<std::string, std::vector<std::uint8_t>> state_of(train::Engine& engine) {
  std::map<std::string, std::vector<std::uint8_t>> state;
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    if (tensor) state[name] = bytes_of_tensor(tensor);
  };
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    add(p.spec.name + " (primary)", p.primary());
    add(p.spec.name + " (value)", p.value);
    add(p.spec.name + " (moment 1)", p.moment1);
    add(p.spec.name + " (moment 2)", p.moment2);
    add(p.spec.name + " (codes)", p.codes.rowwise);
    add(p.spec.name + " (scale_inv)", p.codes.rowwise_scale_inv);
    add(p.spec.name + " (transposed codes)", p.codes.columnwise);
    add(p.spec.name + " (transposed scale_inv)", p.codes.columnwise_scale_inv);
  }
  for (const auto& [name, tensor, held] : engine.model().scales().tensors()) add(name, tensor);
  add("updates", engine.optimizer().updates());
  return state;
}

::testing::AssertionResult same_state(train::Engine& engine, const std::map<std::string, std::vector<std::uint8_t>>& before) {
  for (const auto& [name, bytes] : state_of(engine)) {
    if (bytes != before.at(name)) return ::testing::AssertionFailure() << name << " has moved";
  }
  return ::testing::AssertionSuccess();
}

struct Case {
  std::string recipe;
  bool small;  // BF16 weights and moments with stochastic rounding
};

class SkippedStep : public ::testing::TestWithParam<Case> {
 protected:
  SkippedStep() : options_(options()), engine_(make_engine(options_)) {
    set_num_threads(1);
    for (int i = 0; i < 3; ++i) step(0);
  }

  ~SkippedStep() override { set_num_threads(available_cores()); }

  static train::EngineOptions options() {
    train::EngineOptions options = tiny_options(GetParam().recipe);
    options.storage.master_weights = !GetParam().small;
    if (GetParam().small) options.storage.moments = DType::bf16;
    options.recipe.amax_history_len = 4;
    return options;
  }
  void micro_batch(train::Engine& engine, std::uint32_t subject) const {
    engine.forward_backward(random_tokens(options_.seq_len * options_.micro_batch_size, options_.model.vocab, subject).batch(),
                            nullptr);
  }
  // Takes a step of two micro-batches. Calls `spoil` after the second.
  void step(std::uint32_t subject, const std::function<void()>& spoil = {}) {
    engine_->begin_step();
    micro_batch(*engine_, subject);
    micro_batch(*engine_, subject + 1);
    if (spoil) spoil();
    engine_->apply(1e-2, ++number_);
  }
  bool skipped() { return engine_->optimizer().read(engine_->stream()).found_inf != 0.0f; }
  static void set(const Tensor& tensor, std::int64_t i, float value) {
    if (tensor.dtype == DType::f32) {
      tensor.as<float>()[i] = value;
    } else {
      tensor.as<BFloat16>()[i] = BFloat16(value);
    }
  }
  parallel::Parameter& parameter(std::size_t i) { return engine_->model().parameters().parameters()[i]; }
  std::size_t parameters() { return engine_->model().parameters().parameters().size(); }

  train::EngineOptions options_;
  std::unique_ptr<train::Engine> engine_;
  std::uint32_t number_ = 0;
};

TEST_P(SkippedStep, AGradientThatIsNotFiniteMovesNothing) {
  std::size_t i = 0;
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const bool last : {false, true}) {
      const auto before = state_of(*engine_);
      const parallel::Parameter& p = parameter(i++ % parameters());
      step(number_, [&] { set(p.grad, last ? p.elements() - 1 : 0, value); });
      EXPECT_TRUE(skipped()) << p.spec.name << " " << value;
      EXPECT_TRUE(same_state(*engine_, before)) << p.spec.name << " " << value;
    }
  }
}

TEST_P(SkippedStep, AWeightThatIsNotFiniteMovesNothingMore) {
  for (const float value : {kNan, kInfinity}) {
    for (std::size_t i = 0; i < parameters(); ++i) {
      const parallel::Parameter& p = parameter(i);
      if (p.spec.name == "model.embed_tokens.weight") continue;  // the row that is set may belong to a token that does not occur
      if (value == kInfinity && p.spec.quant) continue;          // quantisation saturates infinity to the largest code
      const std::vector<std::uint8_t> kept = bytes_of_tensor(p.primary());
      set(p.primary(), 0, value);
      engine_->refresh();
      const auto before = state_of(*engine_);
      step(number_);
      EXPECT_TRUE(skipped()) << p.spec.name << " " << value;
      EXPECT_TRUE(same_state(*engine_, before)) << p.spec.name << " " << value;
      std::memcpy(p.primary().data, kept.data(), kept.size());
      engine_->refresh();
    }
  }
}

TEST_P(SkippedStep, TheNextStepIsAsIfItHadNotBeen) {
  const auto other = make_engine(options_);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    other->begin_step();
    micro_batch(*other, 0);
    micro_batch(*other, 1);
    other->apply(1e-2, i);
  }
  ASSERT_TRUE(same_state(*engine_, state_of(*other)));
  // Uses tokens that the model has not seen, so that the amaxes differ.
  step(77, [&] { set(parameter(1).grad, 0, kNan); });
  ASSERT_TRUE(skipped());
  other->begin_step();
  micro_batch(*other, 5);
  micro_batch(*other, 6);
  other->apply(1e-2, number_ + 1);
  const auto before = state_of(*engine_);
  step(5);
  EXPECT_FALSE(skipped());
  EXPECT_FALSE(same_state(*engine_, before));
  EXPECT_TRUE(same_state(*engine_, state_of(*other)));
}

// The exported model has the dtype in which the run computes. BF16 rounds the largest F32 up to infinity.
TEST(NotFiniteWeight, IsOneWithoutAFiniteNumberInTheExportedType) {
  for (const auto& [recipe, largest] :
       {std::pair("fp32", ""), std::pair("bf16", "model.norm.weight"), {"fp8_delayed", "model.norm.weight"}}) {
    const auto engine = make_engine(tiny_options(recipe));
    EXPECT_EQ(not_finite_weight(*engine), "") << recipe;
    for (const parallel::Parameter& p : engine->model().parameters().parameters())
      if (p.spec.name == "model.norm.weight") p.primary().as<float>()[5] = std::numeric_limits<float>::max();
    EXPECT_EQ(not_finite_weight(*engine), largest) << recipe;
  }
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const std::string& recipe : all_precisions()) {
    result.push_back({recipe, false});
    if (recipe != "fp32") result.push_back({recipe, true});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Recipes, SkippedStep, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.recipe + (param.param.small ? "_small_states" : ""); });

}  // namespace
}  // namespace octet::testing
