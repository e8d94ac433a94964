// Tensor parallelism, ranks as threads: however many ranks hold the parts of a layer, it is the same step.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <map>

#include "octet/base/threads.h"
#include "octet/numerics/bounds.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

constexpr int kMicroBatches = 2;  // of a step

Layout layout_of(const std::array<int, parallel::kAxes>& sizes, Weights weights = Weights::kept,
                 Gradients gradients = Gradients::whole) {
  return {.mesh = Mesh(sizes), .weights = weights, .gradients = gradients};
}
const Layout kAlone = layout_of({1, 1, 1, 1}), kTwo = layout_of({1, 1, 1, 2}), kFour = layout_of({1, 1, 1, 4});
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {kTwo, kFour, layout_of({2, 1, 1, 2}),
                                          layout_of({1, 2, 1, 2}, Weights::resharded, Gradients::sharded),
                                          layout_of({1, 2, 2, 2})};
  return all;
}

std::string text(const Layout& layout) {
  std::string result;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    const auto axis = static_cast<parallel::Axis>(i);
    result += concat(name_of(axis), " ", layout.mesh.size(axis), " ");
  }
  return result + (layout.weights == Weights::kept ? "weights kept" : "weights resharded");
}

// Of whole parameters, put together of what all ranks hold.
struct State {
  std::vector<std::string> names;
  std::vector<std::vector<double>> values, gradients;  // before the first step; of the last
  // Of primaries before the first step, of codes where there is none, and of primaries after the last.
  std::vector<std::vector<std::uint8_t>> first_weights, codes, column_codes, weights;
  std::map<std::string, std::vector<std::uint8_t>> scales;
  std::vector<double> losses;  // by step
  double norm = 0;
  std::array<double, 2> evaluation{};
  comm::Traffic sent;  // over the tensor axis in all steps
};

template <class T>
void place(std::vector<T>& whole, std::int64_t size, std::int64_t at, const T* from, std::int64_t count,
           const std::string& what) {
  if (whole.empty()) whole.resize(static_cast<std::size_t>(size));
  // What several ranks hold must be the same.
  for (std::int64_t i = 0; i < count; ++i) {
    T& element = whole[static_cast<std::size_t>(at + i)];
    EXPECT_TRUE(element == T{} || element == from[i]) << what << ", element " << at + i;
    element = from[i];
  }
}

class Tensors : public ::testing::Test {
 protected:
  Tensors() { set_num_threads(1); }
  ~Tensors() override { set_num_threads(available_cores()); }

  // Four ranks share the two heads of keys and values, and have 16 columns each of what FP8 quantises.
  static train::EngineOptions options_of(const std::string& recipe) {
    train::EngineOptions options = tiny_options(recipe);
    options.model.head_dim = 16;
    options.model.ffn = 64;
    options.recipe.amax_history_len = 4;
    return options;
  }
  static Tokens micro_batch(const train::EngineOptions& options, int step, int micro) {
    return random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab,
                         static_cast<std::uint32_t>(step % 3 * kMicroBatches + micro));
  }
  // Adds this rank's part `from` of a parameter, `width` numbers an element.
  template <class T>
  static void collect(std::vector<T>& whole, const parallel::Parameter& p, const std::vector<T>& from, std::size_t width) {
    const auto w = static_cast<std::int64_t>(width);
    for (const parallel::TensorPiece& piece : p.pieces()) {
      parallel::for_runs(piece, p.cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t count) {
        place(whole, w * p.cut.global().elements(), w * global, from.data() + w * (local - p.first_element), w * count,
              p.spec.name);
      });
    }
  }
  // Codes scaled along columns, by rows.
  static std::vector<std::uint8_t> column_codes_of(const parallel::Parameter& p) {
    if (p.column_codes_part) return bytes_of_tensor(p.column_codes_part);
    if (!p.codes.codes_t || p.codes_part) return {};
    std::vector<std::uint8_t> result;
    const Tensor& t = p.codes.codes_t;
    for (std::int64_t row = 0; row < p.spec.shape[0]; ++row) {
      for (std::int64_t col = 0; col < p.spec.shape[1]; ++col) result.push_back(t.as_bytes()[col * t.row_stride + row]);
    }
    return result;
  }
  // `values`, where given, replace the random weights.
  void run(State& state, std::mutex& mutex, const train::EngineOptions& of_all, const Layout& layout, int rank, int steps,
           const parallel::Groups* groups, const std::vector<std::vector<double>>& values) const {
    train::EngineOptions options = of_all;
    options.layout = layout;
    options.rank = rank;
    const Mesh& mesh = layout.mesh;
    train::Engine engine(options, DeviceKind::cpu, groups);
    auto& parameters = engine.model().parameters();
    parameters.initialise(engine.queue(), 7);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::copy(values[i].begin(), values[i].end(), parameters.parameters()[i].value.as<double>());
    }
    engine.refresh();
    {
      const std::lock_guard lock(mutex);
      std::size_t i = 0;
      const std::size_t count = parameters.parameters().size();
      for (auto* list : {&state.first_weights, &state.codes, &state.column_codes, &state.weights}) list->resize(count);
      state.values.resize(count);
      state.gradients.resize(count);
      for (const parallel::Parameter& p : parameters.parameters()) {
        if (state.names.size() < count) state.names.push_back(p.spec.name);
        collect(state.first_weights[i], p, bytes_of_tensor(p.primary()), size_of(p.primary().dtype));
        collect(state.values[i], p, values_of(p.value_part ? p.value_part : p.primary()), 1);
        if (steps == 0 && p.spec.quant) {
          collect(state.codes[i], p, bytes_of_tensor(p.codes_part ? p.codes_part : p.codes.codes), 1);
          if (!column_codes_of(p).empty()) collect(state.column_codes[i], p, column_codes_of(p), 1);
        }
        ++i;
      }
    }
    const comm::Traffic before = groups ? groups->tensor->traffic() : comm::Traffic{};
    std::vector<double> losses;
    double norm = 0;
    for (int step = 1; step <= steps; ++step) {
      engine.zero_gradients(kMicroBatches / mesh.data_coordinates());
      for (int micro = mesh.data_coordinate(rank); micro < kMicroBatches; micro += mesh.data_coordinates()) {
        engine.forward_backward(micro_batch(options, step, micro).batch(), options.observer);
      }
      engine.apply(learning_rate, static_cast<std::uint32_t>(step));
      const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
      losses.push_back(scalars.loss_sum / scalars.token_count);
      norm = scalars.grad_norm;
    }
    const comm::Traffic after = groups ? groups->tensor->traffic() : comm::Traffic{};
    engine.settle_scales();
    std::map<std::string, std::vector<std::uint8_t>> scales;
    for (const auto& [name, tensor] : engine.model().scales().tensors()) scales[name] = bytes_of_tensor(tensor);
    const Tokens one = random_tokens(options.seq_len, options.model.vocab, 77);  // a row less than a micro-batch
    const std::array<double, 2> evaluation = engine.evaluate(one.tokens, one.targets);
    if (mesh.size(parallel::Axis::tensor) > 1) {
      EXPECT_THROW(engine.logits(one.tokens), Error);
    }
    EXPECT_EQ(engine.any_rank(rank == mesh.ranks() - 1), true);
    std::vector<std::vector<std::uint8_t>> exported;
    for (const parallel::Parameter& p : parameters.parameters()) {
      const Tensor whole = engine.whole(p);
      exported.push_back(whole ? bytes_of_tensor(whole) : std::vector<std::uint8_t>{});
    }
    EXPECT_EQ(engine.device().memory().total_peak, train::measure(options, DeviceKind::cpu).total()) << "rank " << rank;

    const std::lock_guard lock(mutex);
    std::size_t i = 0;
    for (const parallel::Parameter& p : parameters.parameters()) {
      collect(state.weights[i], p, bytes_of_tensor(p.primary()), size_of(p.primary().dtype));
      collect(state.gradients[i++], p, values_of(p.grad_part), 1);
    }
    EXPECT_TRUE(state.scales.empty() || state.scales == scales) << "rank " << rank;
    EXPECT_TRUE(state.losses.empty() || state.losses == losses) << "rank " << rank;
    EXPECT_TRUE(state.norm == 0 || state.norm == norm) << "rank " << rank;
    EXPECT_TRUE(state.evaluation[1] == 0 || state.evaluation == evaluation) << "rank " << rank;
    state.scales = scales;
    state.losses = losses;
    state.norm = norm;
    state.evaluation = evaluation;
    state.sent = {after.bytes - before.bytes, after.messages - before.messages};
    if (rank == 0) exported_ = exported;
  }
  State together(const train::EngineOptions& options, const Layout& layout, int steps) const {
    State state;
    std::mutex mutex;
    ThreadStore store;
    run_ranks(layout.mesh.ranks(), [&](int rank) {
      const parallel::Groups groups = thread_groups(store, layout.mesh, rank);
      run(state, mutex, options, layout, rank, steps, &groups, {});
    });
    EXPECT_TRUE(exported_ == state.weights) << "what the first rank writes is what all hold, " << text(layout);
    return state;
  }
  State alone(const train::EngineOptions& options, int steps, const std::vector<std::vector<double>>& values = {}) const {
    State state;
    std::mutex mutex;
    run(state, mutex, options, kAlone, 0, steps, nullptr, values);
    return state;
  }

  double learning_rate = 1e-3;
  mutable std::vector<std::vector<std::uint8_t>> exported_;
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
    const State expected = alone(options, 1);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(text(layout) + (tied ? ", tied" : ""));
      const State actual = together(options, layout, 1);
      EXPECT_NEAR(actual.losses[0], expected.losses[0], bound * expected.losses[0]);
      EXPECT_NEAR(actual.norm, expected.norm, bound * expected.norm) << "every parameter counts once";
      EXPECT_NEAR(actual.evaluation[0], expected.evaluation[0], 2 * bound * expected.evaluation[0]) << "of moved weights";
      EXPECT_EQ(actual.evaluation[1], expected.evaluation[1]);
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        EXPECT_TRUE(near_norm(actual.gradients[i], expected.gradients[i], bound)) << expected.names[i];
      }
    }
  }
}

// The truth is the same step in FP64 from the same weights. Several ranks round wherever one does, and their products once before
// they are added up and once after: on average a gradient is off by less than twice as much.
TEST_F(Tensors, RoundHardlyMoreThanOneRank) {
  for (const std::string recipe : {"fp32", "bf16"}) {
    const double unit = recipe == "fp32" ? kUnitRoundoffF32 : kUnitRoundoffBf16;
    const train::EngineOptions options = options_of(recipe);
    const State one = alone(options, 1), truth = alone(options_of("fp64"), 1, one.values);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const State actual = together(options, layout, 1);
      EXPECT_NEAR(actual.losses[0], truth.losses[0], gamma(24, unit) * truth.losses[0]);
      for (std::size_t i = 0; i < truth.gradients.size(); ++i) {
        EXPECT_TRUE(
            near_norm(actual.gradients[i], truth.gradients[i], 2 * relative_frobenius(one.gradients[i], truth.gradients[i])))
            << truth.names[i];
      }
    }
  }
}

// Every rank has the largest amaxes of all, so all cast alike; from the operands that no sum in another order has touched, the
// weights and the input of the first linear, the scales of one rank follow to the bit.
TEST_F(Tensors, ScalesAreThoseOfOneRank) {
  learning_rate = 0;  // weights stay equal to the bit
  const train::EngineOptions options = options_of("fp8_delayed");
  const State one = alone(options, 1);
  for (const Layout& layout : layouts()) {
    const State actual = together(options, layout, 1);
    int compared = 0;
    for (const auto& [name, bytes] : one.scales) {
      if (name.find(".w.") == std::string::npos && name.find("layers.0.self_attn.q_proj.fused.x.") == std::string::npos) continue;
      EXPECT_EQ(actual.scales.at(name), bytes) << name << ", " << text(layout);
      ++compared;
    }
    EXPECT_EQ(compared, 2 * (2 * 4 + 1));  // scale and history of four weights a layer, and of one input
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
    const State one = alone(options, 0);
    for (const Layout& layout : {kTwo, kFour, layout_of({1, 2, 1, 2})}) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const State actual = together(options, layout, 0);
      EXPECT_TRUE(actual.first_weights == one.first_weights);
      EXPECT_TRUE(actual.codes == one.codes);
      for (std::size_t i = 0; i < one.names.size(); ++i) {
        if (actual.column_codes[i].empty()) continue;
        EXPECT_TRUE(actual.column_codes[i] == one.column_codes[i]) << one.names[i];
      }
    }
  }
}

// 16-bit weights and moments, rounded stochastically: the same gradient gives the same bits, whoever holds the element.
TEST_F(Tensors, RoundTheSameOnEveryMesh) {
  train::EngineOptions options = options_of("bf16");
  options.master_weights = false;
  options.moments_dtype = DType::bf16;
  options.optimizer.max_grad_norm = 0;
  const State expected = alone(options, 1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text(layout));
    const State actual = together(options, layout, 1);
    for (std::size_t i = 0; i < expected.weights.size(); ++i) {
      std::size_t same = 0;
      for (std::size_t e = 0; e < expected.gradients[i].size(); ++e) {
        if (actual.gradients[i][e] != expected.gradients[i][e]) continue;
        ++same;
        ASSERT_EQ(actual.weights[i][2 * e], expected.weights[i][2 * e]) << expected.names[i] << " element " << e;
        ASSERT_EQ(actual.weights[i][2 * e + 1], expected.weights[i][2 * e + 1]);
      }
      if (expected.names[i] == "model.embed_tokens.weight") {
        EXPECT_GT(same, 0u) << "rows that no token has";
      }
    }
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
      const State codes = together(options, kFour, 2);
      options.observer = &observer;
      const State values = together(options, kFour, 2);
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
      for (const Layout& layout : {kTwo, kFour}) {
        const int t = layout.mesh.size(parallel::Axis::tensor);
        const std::int64_t tokens = options.micro_batch_size * options.seq_len, share = tokens / t * model.dim;
        const std::int64_t gathers = kMicroBatches * model.layers * (4 + again.gathers);
        const std::int64_t others = kMicroBatches * (model.layers * (4 + again.scatters) + 4), statistics = kMicroBatches;
        const std::int64_t gathered_bytes = gathers * share * (delayed || current ? 1 : 2) + others * share * 2 +
                                            statistics * 3 * tokens * static_cast<std::int64_t>(sizeof(float));
        const std::int64_t norms = 2 * model.layers + 1, heads = t > model.kv_heads ? 2 * model.layers : 0;
        std::int64_t sums = norms + heads + 1,
                     summed = norms * model.dim + heads * model.kv_heads * model.head_dim * model.dim + 2;
        if (delayed) sums += 1, summed += 3 * 4 * model.layers;
        if (current) sums += 1 + gathers, summed += 4 * model.layers + gathers;
        const State state = together(options, layout, steps);
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
  const auto compare = [&](const Layout& layout, const State& first) {
    const State state = together(options, layout, 3);
    EXPECT_TRUE(state.weights == first.weights) << text(layout);
    EXPECT_TRUE(state.scales == first.scales) << text(layout);
    EXPECT_EQ(state.losses, first.losses) << text(layout);
  };
  const Layout mixed = layout_of({1, 2, 1, 2});
  const State of_mixed = together(options, mixed, 3), first = together(options, kTwo, 3);
  compare(layout_of({1, 2, 1, 2}, Weights::resharded), of_mixed);
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    compare(kTwo, first);
  }
}

// Scales of a rank's own columns and blocks differ from those of one rank, and so do codes; the curve does not.
TEST_P(TensorRecipes, LearnAsOneRank) {
  train::EngineOptions options = options_of(GetParam());
  options.model.init_std = 0.1;  // with weights of 0.2, FP8's rounding alone parts two runs by more than 1 %
  const State one = alone(options, 20);
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front()) << "a curve that goes nowhere tells nothing";
  for (const Layout& layout : {kTwo, kFour}) {
    const State actual = together(options, layout, 20);
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(actual.losses[step], one.losses[step], 0.01 * one.losses[step]) << text(layout) << ", step " << step + 1;
    }
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
    const State one = alone(options, 6);
    for (const Layout& layout : {kFour, layout_of({1, 2, 1, 2}, Weights::resharded, Gradients::sharded)}) {
      SCOPED_TRACE(concat(v.recipe, v.tied_head ? ", tied, " : ", ", text(layout)));
      const State actual = together(options, layout, 6);
      for (std::size_t step = 0; step < one.losses.size(); ++step) {
        EXPECT_NEAR(actual.losses[step], one.losses[step], 0.01 * one.losses[step]) << "step " << step + 1;
      }
    }
    std::vector<State> states;
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      options.checkpointing = mode;
      states.push_back(together(options, kTwo, 2));
      EXPECT_TRUE(states.back().weights == states[0].weights) << v.recipe;
    }
  }
}

}  // namespace
}  // namespace octet::testing
