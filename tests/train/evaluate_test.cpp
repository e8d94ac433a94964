#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "octet/train/restore.h"
#include "support/blind_routers.h"
#include "support/tiny_run.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class Evaluate : public ::testing::TestWithParam<std::string> {
 protected:
  Evaluate() { write_corpus(folder_ / "corpus", tiny_documents(8, 60)); }

  data::Dataset dataset(double held_out) const {
    return data::Dataset(
        {.sources = {{.path = folder_ / "corpus"}}, .seq_len = 24, .split = {1 - held_out, held_out}, .vocab_size = 256});
  }
  train::EngineOptions options(std::int64_t micro_batch_size) const {
    train::EngineOptions options = tiny_options(GetParam());
    options.document_mask = masks_documents_;
    options.model.vocab = 256;
    options.micro_batch_size = micro_batch_size;
    return options;
  }
  // Returns an engine after two steps, so that delayed scales are not 1. The steps do not depend on `micro_batch_size`.
  std::unique_ptr<train::Engine> trained(std::int64_t micro_batch_size) const {
    const auto source = make_engine(options(1));
    for (std::uint32_t step = 1; step <= 2; ++step) {
      source->begin_step();
      for (std::uint32_t sequence = 0; sequence < 3; ++sequence) {
        source->forward_backward(random_tokens(24, 256, 10 * step + sequence).batch(), nullptr);
      }
      source->apply(1e-3, step);
    }
    auto engine = make_engine(options(micro_batch_size));
    const auto& from = source->model().parameters().parameters();
    auto& to = engine->model().parameters().parameters();
    for (std::size_t i = 0; i < to.size(); ++i)
      std::memcpy(to[i].primary().data, from[i].primary().data, to[i].primary().bytes());
    const auto from_scales = source->model().scales().tensors(), to_scales = engine->model().scales().tensors();
    for (std::size_t i = 0; i < to_scales.size(); ++i) {
      std::memcpy(to_scales[i].tensor.data, from_scales[i].tensor.data, to_scales[i].tensor.bytes());
    }
    engine->refresh();
    return engine;
  }

  void expect_same_for_any_micro_batch() const {
    const data::Dataset data = dataset(0.2);
    const double one = train::evaluate(*trained(1), data, 7);
    const double three = train::evaluate(*trained(3), data, 7);  // the last micro-batch is not full
    // Current scaling takes one scale over all tokens of a micro-batch. The other recipes compute each token independently.
    const bool by_tensor = GetParam() == "fp8_current";
    EXPECT_NEAR(one, three, (by_tensor ? 0x1p-6 : 0x1p-20) * one);
  }

  bool masks_documents_ = false;
  TemporaryFolder folder_;
};

TEST_P(Evaluate, IsTheMeanOverHeldOutTokens) {
  const data::Dataset data = dataset(0.2);
  const std::int64_t sequences = 5;
  ASSERT_GT(data.held_out_samples(), sequences);
  const auto engine = trained(1);
  double loss = 0, tokens = 0;
  std::vector<std::int32_t> ids(24), targets(24), starts;
  for (std::int64_t i = 0; i < sequences; ++i) {
    data.held_out_sample(i, sequences, {.tokens = ids, .targets = targets}, starts);
    const auto [sum, count] = engine->evaluate(ids, targets);
    loss += sum;
    tokens += count;
  }
  EXPECT_EQ(tokens, static_cast<double>(sequences * 24));
  EXPECT_EQ(train::evaluate(*engine, data, sequences), loss / tokens);
  // Asking for more samples than there are evaluates all of them.
  EXPECT_EQ(train::evaluate(*engine, data, 1 << 30), train::evaluate(*engine, data, data.held_out_samples()));
}

TEST_P(Evaluate, DoesNotDependOnTheMicroBatchBeyondItsRounding) { expect_same_for_any_micro_batch(); }

// Documents of a few words, of which a row has several.
TEST_P(Evaluate, KnowsTheDocumentsOfEveryRow) {
  write_corpus(folder_ / "corpus", tiny_documents(60, 3));
  masks_documents_ = true;
  expect_same_for_any_micro_batch();
}

TEST_P(Evaluate, LeavesNoTrace) {
  const data::Dataset data = dataset(0.2);
  const auto engine = trained(2);
  const auto state = [&] {
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      for (const Tensor& tensor : {p.primary(), p.grad, p.moment1, p.moment2, p.codes.rowwise}) {
        if (tensor) bytes.push_back(bytes_of_tensor(tensor));
      }
    }
    for (const auto& [name, tensor, held] : engine->model().scales().tensors()) bytes.push_back(bytes_of_tensor(tensor));
    double total[2];
    engine->stream().copy_to_host(total, engine->optimizer().loss_total(), sizeof total);
    engine->stream().synchronize();
    const auto* raw = reinterpret_cast<const std::uint8_t*>(total);
    bytes.emplace_back(raw, raw + sizeof total);
    return bytes;
  };
  const auto before = state();
  train::evaluate(*engine, data, 9);
  EXPECT_EQ(state(), before);
}

TEST_P(Evaluate, NothingHeldOutIsNoNumber) {
  EXPECT_TRUE(std::isnan(train::evaluate(*trained(1), dataset(0.0), 5)));
  EXPECT_TRUE(std::isnan(train::evaluate(*trained(1), dataset(0.2), 0)));
}

// All tokens go to one expert, in two rounds. An engine that does not train has no backward pass, whose rounds need more memory
// than those of forward. So many tokens in experts so narrow make the rows that ranks exchange take most of the scratch.
class EvaluateOnMesh : public MeshTest {};
TEST_F(EvaluateOnMesh, HasRoomForSeveralRoundsWithoutTraining) {
  for (const char* recipe : {"fp64", "bf16", "fp8_delayed", "fp8_current", "fp8_block"}) {
    for (const bool calibrates : {false, true}) {
      SCOPED_TRACE(recipe);
      train::EngineOptions options = mixture_options(recipe);
      options.storage.training = false;
      options.calibrates = calibrates;
      options.model.ffn = 16;
      options.micro_batch_size = 128;
      options.model.experts_per_token = 1;
      const auto loss = [](train::Engine& engine) {
        blind_routers(engine);
        const Tokens tokens = random_tokens(engine.options().seq_len * engine.options().micro_batch_size, 32);
        if (engine.options().calibrates) engine.calibrate(1, [&] { return tokens.batch(); });
        const auto [sum, count] = evaluate_a_row(engine);
        return sum / count;
      };
      const double alone = loss(*make_engine(options));
      on_engines(options, {.mesh = Mesh({1, 4, 1, 1}, 4)}, [&](train::Engine& engine, const parallel::Groups&) {
        EXPECT_NEAR(loss(engine), alone, (options.recipe.is_fp8() ? 0x1p-5 : 0x1p-7) * alone);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Evaluate, ::testing::ValuesIn(all_recipes()), [](const auto& param) { return param.param; });

}  // namespace
}  // namespace octet::testing
