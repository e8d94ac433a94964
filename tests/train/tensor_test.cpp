// Tensor parallelism, ranks as threads: however many ranks hold the parts of a layer, it is the same step.
#include <gtest/gtest.h>

#include <atomic>

#include "octet/numerics/bounds.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

Layout layout_of(const std::array<int, parallel::kAxes>& sizes, Weights weights = Weights::kept,
                 Gradients gradients = Gradients::whole) {
  return {.mesh = Mesh(sizes), .weights = weights, .gradients = gradients};
}
const Layout kTensorOne = layout_of({1, 1, 1, 1}), kTensorTwo = layout_of({1, 1, 1, 2}), kTensorFour = layout_of({1, 1, 1, 4});
const std::vector<Layout>& tensor_layouts() {
  static const std::vector<Layout> all = {kTensorTwo, kTensorFour, layout_of({2, 1, 1, 2}),
                                          layout_of({1, 2, 1, 2}, Weights::resharded, Gradients::sharded),
                                          layout_of({1, 2, 2, 2})};
  return all;
}

struct TensorState : RunState {
  // Before the first step: of primaries, and of codes where no step is taken.
  Wholes<double> values;
  Wholes<std::uint8_t> first_weights, codes, column_codes;
  std::array<double, 2> evaluation{};
  comm::Traffic sent;  // over the tensor axis in all steps
};

// Codes scaled along columns, by rows.
std::vector<std::uint8_t> column_codes_of(const parallel::Parameter& p) {
  if (p.column_codes_part) return bytes_of_tensor(p.column_codes_part);
  if (!p.codes.codes_t || p.codes_part) return {};
  std::vector<std::uint8_t> result;
  const Tensor& t = p.codes.codes_t;
  for (std::int64_t row = 0; row < p.spec.shape[0]; ++row) {
    for (std::int64_t col = 0; col < p.spec.shape[1]; ++col) result.push_back(t.as_bytes()[col * t.row_stride + row]);
  }
  return result;
}

class Tensors : public MeshTest {
 protected:
  // Four ranks share the two heads of keys and values, and have 16 columns each of what FP8 quantises.
  static train::EngineOptions options_of(const std::string& recipe) {
    train::EngineOptions options = tiny_options(recipe);
    options.model.head_dim = 16;
    options.model.ffn = 64;
    options.recipe.amax_history_len = 4;
    return options;
  }
  static void add_first(TensorState& state, train::Engine& engine, bool with_codes) {
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      state.first_weights.add(p, bytes_of_tensor(p.primary()), size_of(p.primary().dtype));
      state.values.add(p, values_of(p.value_part ? p.value_part : p.primary()));
      if (!with_codes || !p.spec.quant) continue;
      state.codes.add(p, bytes_of_tensor(p.codes_part ? p.codes_part : p.codes.codes));
      if (!column_codes_of(p).empty()) state.column_codes.add(p, column_codes_of(p));
    }
  }
  // `values`, where given, replace the random weights.
  TensorState run(const train::EngineOptions& options, const Layout& layout, int steps, const Wholes<double>* values = nullptr) const {
    TensorState state;
    ByName<std::uint8_t> exported;
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups& groups) {
      const int rank = engine.options().rank;
      if (values) set_values(engine, *values);
      {
        const std::lock_guard lock(mutex);
        add_first(state, engine, steps == 0);
      }
      const comm::Traffic before = groups.tensor->traffic();
      const Taken taken = take(engine, {.count = steps, .learning_rate = learning_rate});
      const comm::Traffic after = groups.tensor->traffic();
      engine.settle_scales();
      const std::array<double, 2> evaluation = evaluate_a_row(engine);
      if (layout.mesh.size(parallel::Axis::tensor) > 1) {
        EXPECT_THROW(engine.logits(random_tokens(options.seq_len, options.model.vocab).tokens), Error);
      }
      const ByName<std::uint8_t> of_rank = exported_weights(engine);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(state.ranks == 0 || state.evaluation == evaluation) << "rank " << rank;
      if (rank == 0) exported = of_rank;
      state.add(engine, taken);
      state.evaluation = evaluation;
      state.sent = {after.bytes - before.bytes, after.messages - before.messages};
    });
    for (const auto* bytes : {&state.first_weights, &state.codes, &state.column_codes, &state.weights}) bytes->expect_whole();
    for (const auto* numbers : {&state.values, &state.gradients}) numbers->expect_whole();
    EXPECT_TRUE(exported == state.weights.by_name()) << "what the first rank writes is what all hold, " << text(layout);
    return state;
  }
  TensorState alone(const train::EngineOptions& options, int steps, const Wholes<double>* values = nullptr) const {
    return run(options, kTensorOne, steps, values);
  }

  double learning_rate = 1e-3;
};

// In FP64 what differs is the order of sums, a few thousand terms along the longest path from a token to a gradient, each within
// a roundoff of the magnitudes it adds up: gamma(2^12), relative to the norm of what comes out, whose terms cancel by less
// than 2.
TEST_F(Tensors, TakeTheStepOfOneRank) {
  const double bound = 2 * gamma(4096, kUnitRoundoffF64);
  for (const bool tied : {false, true}) {
    train::EngineOptions options = options_of("fp64");
    options.model.tied_head = tied;
    if (tied) options.micro_batch_size = 3;
    const TensorState expected = alone(options, 1);
    for (const Layout& layout : tensor_layouts()) {
      SCOPED_TRACE(text(layout) + (tied ? ", tied" : ""));
      const TensorState actual = run(options, layout, 1);
      expect_same_step(actual, expected, bound);
      EXPECT_NEAR(actual.evaluation[0], expected.evaluation[0], 2 * bound * expected.evaluation[0]) << "of moved weights";
      EXPECT_EQ(actual.evaluation[1], expected.evaluation[1]);
    }
  }
}

TEST_F(Tensors, TakeTheStepOfOneRankWithAWindow) {
  for (const bool documents : {false, true}) {
    train::EngineOptions options = options_of("fp64");
    options.model.sliding_window = 5;
    options.document_mask = documents;
    const TensorState expected = alone(options, 1);
    for (const Layout& layout : tensor_layouts()) {
      SCOPED_TRACE(text(layout) + (documents ? ", documents" : ""));
      expect_same_step(run(options, layout, 1), expected, 2 * gamma(4096, kUnitRoundoffF64));
    }
  }
}

// Products are rounded once before they are added up over ranks and once after.
TEST_F(Tensors, RoundHardlyMoreThanOneRank) {
  for (const std::string recipe : {"fp32", "bf16"}) {
    const double unit = recipe == "fp32" ? kUnitRoundoffF32 : kUnitRoundoffBf16;
    const train::EngineOptions options = options_of(recipe);
    const TensorState one = alone(options, 1), truth = alone(options_of("fp64"), 1, &one.values);
    for (const Layout& layout : tensor_layouts()) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const TensorState actual = run(options, layout, 1);
      EXPECT_NEAR(actual.taken.losses[0], truth.taken.losses[0], gamma(24, unit) * truth.taken.losses[0]);
      expect_hardly_more_rounding(actual, one, truth);
    }
  }
}

// Every rank has the largest amaxes of all, so all cast alike.
TEST_F(Tensors, ScalesAreThoseOfOneRank) {
  learning_rate = 0;  // weights stay equal to the bit
  const train::EngineOptions options = options_of("fp8_delayed");
  const TensorState one = alone(options, 1);
  for (const Layout& layout : tensor_layouts()) {
    SCOPED_TRACE(text(layout));
    expect_scales_of_one(run(options, layout, 1), one, options.model.layers);
  }
}

// Blocks begin anew in what a rank holds: where that is cut between blocks, they are those of the whole.
TEST_F(Tensors, WeightsAndCodesAreThoseOfOneRank) {
  for (const std::string& recipe : all_recipes()) {
    train::EngineOptions options = options_of(recipe);
    options.model.layers = 1;
    options.model.dim = 128;
    options.model.heads = options.model.kv_heads = 4;
    options.model.head_dim = 128;
    options.model.ffn = 512;
    const TensorState one = alone(options, 0);
    for (const Layout& layout : {kTensorTwo, kTensorFour, layout_of({1, 2, 1, 2})}) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const TensorState actual = run(options, layout, 0);
      EXPECT_TRUE(actual.first_weights == one.first_weights);
      EXPECT_TRUE(actual.codes == one.codes);
      for (const auto& [name, codes] : actual.column_codes.by_name()) EXPECT_TRUE(codes == one.column_codes.at(name)) << name;
      const bool by_row = options.recipe.is_fp8() && !kernels::is_square(options.recipe.w.tile);
      EXPECT_GE(actual.column_codes.by_name().size(), by_row ? 4u : 0u) << "four linears";
    }
  }
}

// 16-bit weights and moments, rounded stochastically.
TEST_F(Tensors, RoundTheSameOnEveryMesh) {
  train::EngineOptions options = options_of("bf16");
  options.master_weights = false;
  options.moments_dtype = DType::bf16;
  options.optimizer.max_grad_norm = 0;
  const TensorState expected = alone(options, 1);
  for (const Layout& layout : tensor_layouts()) {
    SCOPED_TRACE(text(layout));
    const auto same = expect_weights_of_same_gradients(run(options, layout, 1), expected);
    EXPECT_GT(same.at("model.embed_tokens.weight"), 0u) << "rows that no token has";
  }
}

// What is gathered as codes has the bits of what is gathered as values, which an observer is shown.
TEST_F(Tensors, CodesAreThoseOfGatheredValues) {
  struct Observer : nn::LinearObserver {
    void operand(const nn::Scope&, std::string_view, Role, const Tensor& source, const Quantized&) override { seen += !!source; }
    bool wants_products(std::string_view) const override { return false; }
    void product(const nn::Scope&, std::string_view, std::string_view, const Tensor&) override {}
    std::atomic<int> seen = 0;
  } observer;
  for (const std::string recipe : {"fp8_delayed", "fp8_current"}) {
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      train::EngineOptions options = options_of(recipe);
      options.checkpointing = mode;
      const TensorState codes = run(options, kTensorFour, 2);
      options.observer = &observer;
      const TensorState values = run(options, kTensorFour, 2);
      EXPECT_GT(observer.seen, 0);
      EXPECT_LT(codes.sent.bytes, values.sent.bytes) << recipe;
      EXPECT_TRUE(codes.weights == values.weights) << recipe;
      EXPECT_TRUE(codes.gradients == values.gradients) << recipe;
      EXPECT_TRUE(codes.scales == values.scales) << recipe;
    }
  }
}

// A layer gathers twice forward and twice backward, codes where a scale serves the whole tensor, and scatters as often; embedding
// and head do each once, in BF16, and the head's statistics are gathered. Once a step the gradients of norms, and of heads that
// several ranks hold, are summed, and so is the norm of the gradient. Scales of history are settled once a step; of this very
// tensor, with every gather, and of all weights once a step.
TEST_F(Tensors, SendWhatTheyMust) {
  struct Again {
    nn::Checkpointing mode;
    int gathers, scatters;  // more in a layer
  };
  const int steps = 2;
  for (const Again& again :
       {Again{nn::Checkpointing::none, 0, 0}, Again{nn::Checkpointing::selective, 2, 0}, Again{nn::Checkpointing::full, 2, 1}}) {
    for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_block"}) {
      train::EngineOptions options = options_of(recipe);
      options.checkpointing = again.mode;
      const models::DecoderConfig& model = options.model;
      const bool delayed = recipe == "fp8_delayed", current = recipe == "fp8_current";
      for (const Layout& layout : {kTensorTwo, kTensorFour}) {
        const int t = layout.mesh.size(parallel::Axis::tensor);
        const std::int64_t tokens = options.micro_batch_size * options.seq_len, share = tokens / t * model.dim;
        const std::int64_t micro_batches = Steps().micro_batches, gathers = micro_batches * model.layers * (4 + again.gathers);
        const std::int64_t others = micro_batches * (model.layers * (4 + again.scatters) + 4), statistics = micro_batches;
        const std::int64_t gathered_bytes = gathers * share * (delayed || current ? 1 : 2) + others * share * 2 +
                                            statistics * 3 * tokens * static_cast<std::int64_t>(sizeof(float));
        const std::int64_t norms = 2 * model.layers + 1, heads = t > model.kv_heads ? 2 * model.layers : 0;
        std::int64_t sums = norms + heads + 1,
                     summed = norms * model.dim + heads * model.kv_heads * model.head_dim * model.dim + 4;
        if (delayed) sums += 1, summed += 3 * 4 * model.layers;
        if (current) sums += 1 + gathers, summed += 4 * model.layers + gathers;
        const TensorState state = run(options, layout, steps);
        EXPECT_EQ(state.sent.messages, steps * (gathers + others + statistics + sums)) << recipe << ", " << text(layout);
        EXPECT_EQ(state.sent.bytes,
                  steps * (t - 1) * (static_cast<double>(gathered_bytes) + 2.0 / t * 4.0 * static_cast<double>(summed)))
            << recipe << ", " << text(layout);
      }
    }
  }
}

class TensorRecipes : public Tensors, public ::testing::WithParamInterface<std::string> {};

// The same mesh, whatever backward computes again and however weights and gradients are kept.
TEST_P(TensorRecipes, RepeatToTheBit) {
  train::EngineOptions options = options_of(GetParam());
  const auto compare = [&](const Layout& layout, const TensorState& first) {
    SCOPED_TRACE(text(layout));
    const TensorState state = run(options, layout, 3);
    EXPECT_TRUE(state.weights == first.weights);
    EXPECT_TRUE(state.scales == first.scales);
    EXPECT_TRUE(state.taken == first.taken);
  };
  const Layout mixed = layout_of({1, 2, 1, 2});
  const TensorState of_mixed = run(options, mixed, 3), first = run(options, kTensorTwo, 3);
  compare(layout_of({1, 2, 1, 2}, Weights::resharded), of_mixed);
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    compare(kTensorTwo, first);
  }
}

TEST_P(TensorRecipes, LearnAsOneRank) {
  train::EngineOptions options = options_of(GetParam());
  options.model.init_std = 0.1;
  const TensorState one = alone(options, 20);
  EXPECT_LT(one.taken.losses.back(), 0.9 * one.taken.losses.front()) << "a curve that goes nowhere tells nothing";
  for (const Layout& layout : {kTensorTwo, kTensorFour}) {
    SCOPED_TRACE(text(layout));
    expect_same_curve(run(options, layout, 20), one);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, TensorRecipes,
                         ::testing::Values("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

// What else changes how a linear reads and keeps its operands: the head in FP8, a tied one that is read as values and as codes,
// wgrad in BF16, a layer in BF16 between others, and 16-bit states.
TEST_F(Tensors, LearnWhateverIsInFp8) {
  struct Variant {
    std::string recipe;
    recipes::Options options = {};
    bool tied_head = false, master_weights = true;
    DType state = DType::f32;
  };
  for (const Variant& v : {Variant{"fp8_delayed", {.head = "recipe"}}, Variant{"fp8_current", {.head = "recipe"}},
                           Variant{"fp8_delayed", {.head = "recipe"}, true}, Variant{"fp8_rowwise", {.head = "recipe"}, true},
                           Variant{"fp8_delayed", {.wgrad = "bf16"}}, Variant{"fp8_rowwise", {.wgrad = "bf16"}},
                           Variant{"fp8_current", {.skip = {"model.layers.1.mlp.down_proj"}}},
                           Variant{"fp8_delayed", {}, false, false, DType::bf16}}) {
    train::EngineOptions options = options_of(v.recipe);
    options.recipe = recipe_named(v.recipe, v.options);
    options.model.vocab = 64;  // 16 rows of the head to a rank
    options.model.init_std = 0.1;
    options.model.tied_head = v.tied_head;
    options.master_weights = v.master_weights;
    options.grad_dtype = options.moments_dtype = v.state;
    const TensorState one = alone(options, 6);
    for (const Layout& layout : {kTensorFour, layout_of({1, 2, 1, 2}, Weights::resharded, Gradients::sharded)}) {
      SCOPED_TRACE(concat(v.recipe, v.tied_head ? ", tied, " : ", ", text(layout)));
      expect_same_curve(run(options, layout, 6), one);
    }
    std::vector<TensorState> states;
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      options.checkpointing = mode;
      states.push_back(run(options, kTensorTwo, 2));
      EXPECT_TRUE(states.back().weights == states[0].weights) << v.recipe;
    }
  }
}

}  // namespace
}  // namespace octet::testing
