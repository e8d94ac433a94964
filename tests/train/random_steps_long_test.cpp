// Random models on random meshes. In FP64 they take the step of one rank. In every recipe their bits do not depend on what a rank
// keeps, offloads or computes again, nor on pipeline stages. Other tests of steps name their cases and look at one feature each.
// These draw all features at once, in sizes that are not powers of two. The ranks are threads.
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>

#include "octet/base/rng.h"
#include "support/blind_routers.h"
#include "support/bounds.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

using nn::Checkpointing;
using parallel::Stages;

constexpr std::uint32_t kBatches = 20, kCasesOfABatch = 30;
constexpr int kMostRanks = 8;

class Draws {
 public:
  explicit Draws(std::uint32_t number) : rng_(31, RngStream::test, number) {}
  std::size_t below(std::size_t n) { return rng_.word64(drawn_++) % n; }
  bool once_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  std::vector<bool> for_each_layer(std::int64_t layers) {
    std::vector<bool> result;
    while (std::ssize(result) < layers) result.push_back(once_in(2));
    return result;
  }

 private:
  Rng rng_;
  std::uint64_t drawn_ = 0;
};

struct RandomCase {
  train::EngineOptions options;
  Layout layout;
  int micro_batches = 1;  // in the step, over all ranks
  bool blind = false;     // all tokens go to the experts of one rank
};

// FP8 quantises dims that are multiples of 16.
models::DecoderConfig random_model(Draws& draws, bool quantised) {
  const std::vector<NamedModel> models = tiny_models();
  models::DecoderConfig model = draws.once_in(4) ? mixture_options("fp64").model : models[draws.below(models.size())].config;
  const bool all_heads_alike = model.kv_heads == model.heads, rotates_a_part = model.rotary_dim > 0;
  model.layers = draws.one_of({1, 2, 3, 4, 6});
  model.vocab = quantised ? draws.one_of({64, 96}) : draws.one_of({24, 32, 36});
  model.dim = quantised ? draws.one_of({16, 32, 48}) : draws.one_of({16, 24, 40});
  model.ffn = quantised ? draws.one_of({48, 64, 96}) : draws.one_of({12, 24, 48, 64});
  model.heads = draws.one_of({1, 2, 3, 4, 6});
  model.kv_heads = all_heads_alike || draws.once_in(3) ? model.heads : model.heads % 2 == 0 ? draws.one_of({1, 2}) : 1;
  model.head_dim = quantised ? 16 : draws.one_of({4, 6, 8, 16});
  if (rotates_a_part) model.rotary_dim = draws.one_of<std::int64_t>({2, 4, model.head_dim});
  // With a window of 1, what reaches the norms of Q and K is nothing but roundoff.
  if (model.sliding_window > 0 || (model.family == "llama" && draws.once_in(4)))
    model.sliding_window = draws.one_of({2, 3, 9, 30});
  if (!model.sees_all.empty()) model.sees_all = draws.for_each_layer(model.layers);
  if (model.family != "gpt_neo") model.tied_head = draws.once_in(4);
  if (model.experts > 0) {
    model.experts = draws.one_of({2, 4, 6});
    model.experts_per_token = draws.one_of({1, 2});
    model.dense_layers = draws.once_in(2) ? draws.for_each_layer(model.layers) : std::vector<bool>();
    if (!model.dense_layers.empty()) model.dense_layers.back() = false;  // a model in which no layer has experts is refused
  }
  return model;
}

// Keeps the rules of docs/parallelism.md.
bool fits(const train::EngineOptions& o, const Layout& layout) {
  const models::DecoderConfig& model = o.model;
  const Mesh& mesh = layout.mesh;
  const std::int64_t tensor = mesh.size(Axis::tensor), context = mesh.size(Axis::context);
  const Stages stages = mesh.stages();
  const std::int64_t chunks = std::int64_t{stages.count} * stages.chunks;
  const bool has_room = model.layers % chunks == 0 || (model.layers + 2) % chunks == 0;
  return mesh.ranks() <= kMostRanks && (context == 1 || o.seq_len % (2 * context) == 0) && model.heads % tensor == 0 &&
         (model.kv_heads % tensor == 0 || tensor % model.kv_heads == 0) &&
         (tensor == 1 || (model.heads * model.head_dim % (16 * tensor) == 0 && model.ffn % (16 * tensor) == 0)) &&
         model.vocab % tensor == 0 && model.expert_ffn % (16 * tensor) == 0 &&
         o.micro_batch_size * o.seq_len / context % tensor == 0 && (tensor == 1 || model.qk_norm != nn::QkNorm::whole) &&
         (stages.count == 1 || (!model.tied_head && has_room && model.layers >= chunks)) &&
         o.micro_batch_size * o.seq_len / context % recipes::token_multiple(o.recipe) == 0 &&
         (!o.recipe.is_fp8() || model.vocab % (16 * tensor) == 0) &&
         (o.recipe.attention == AttentionPrecision::bf16 || context == 1) && (o.storage.moments != DType::f8_e4m3 || tensor == 1);
}

Layout random_layout(Draws& draws, const models::DecoderConfig& model) {
  const auto size = [&] { return draws.once_in(3) ? draws.one_of({2, 3, 4}) : 1; };
  const int shard = model.experts > 0 ? draws.one_of({1, 2, 3, 4}) : size();
  const bool divides = model.experts > 0 && model.experts % shard == 0 && !draws.once_in(4);
  const Stages stages = draws.once_in(3) ? Stages{.count = 2, .chunks = draws.one_of({1, 2})} : Stages{};
  Layout layout{.mesh = Mesh({size(), shard, size(), size()}, divides ? shard : 1, stages),
                .weights = draws.one_of({Weights::kept, Weights::resharded}),
                .gradients = draws.one_of({Gradients::whole, Gradients::sharded})};
  if (divides && shard > 1 && stages.count == 1 && draws.once_in(2)) layout.lanes = 2;
  return layout;
}

recipes::Options random_settings(Draws& draws) {
  recipes::Options options{.format = draws.one_of({"hybrid", "e4m3"}), .amax_history_len = draws.one_of({1, 3})};
  if (draws.once_in(4)) options.wgrad = "bf16";
  if (draws.once_in(2)) options.head = "recipe";
  if (draws.once_in(4)) options.skip = {"*.0.*att*"};
  return options;
}

RandomCase random_case(Draws& draws, const std::string& recipe) {
  for (;;) {
    RandomCase c{.options = tiny_options("fp64")};
    train::EngineOptions& o = c.options;
    const bool quantised = recipe.starts_with("fp8") || recipe.starts_with("mx");
    o.model = random_model(draws, quantised);
    o.recipe = recipe_named(recipe, quantised ? random_settings(draws) : recipes::Options());
    o.seq_len = draws.one_of({7, 8, 12, 13, 24});
    o.micro_batch_size = draws.one_of({1, 2, 3});
    o.checkpointing = draws.one_of({Checkpointing::none, Checkpointing::selective, Checkpointing::full});
    if (draws.once_in(3)) o.full_blocks = draws.one_of({0, 1, 2});
    o.document_mask = draws.once_in(3);
    if (draws.once_in(4)) o.storage.offload_slot = 4096;
    if (recipe != "fp64" && draws.once_in(4)) o.storage.moments = draws.one_of({DType::bf16, DType::f8_e4m3});
    if (recipe != "fp64" && draws.once_in(4)) o.storage.master_weights = false;
    if (recipe != "fp64" && draws.once_in(4)) o.storage.grad = DType::bf16;
    if (draws.once_in(4)) {
      o = adapted(o);
      if (draws.once_in(2)) o.adapters.dropout = {.rate = 0.3, .seed = 21};
    }
    c.blind = o.model.experts > 0 && o.model.experts_per_token == 1 && draws.once_in(3);
    c.layout = random_layout(draws, o.model);
    if (!fits(o, c.layout)) continue;
    const Stages stages = c.layout.mesh.stages();
    const int together = stages.chunks > 1 ? stages.count : c.layout.lanes;
    c.micro_batches = c.layout.mesh.data_coordinates() * together * draws.one_of({1, 2});
    c.layout.accumulates = c.layout.mesh.size(Axis::tensor) > 1 || c.micro_batches > c.layout.mesh.data_coordinates();
    return c;
  }
}

std::string name_of(const RandomCase& c) {
  return concat(c.options.model.family, " in ", c.options.recipe.name, ", ", c.options.model.layers, " layers, ",
                c.options.micro_batch_size, " x ", c.options.seq_len, " tokens, ", c.micro_batches, " micro-batches, ",
                text(c.layout));
}

Beside before_steps(const RandomCase& c) {
  return {.before = [adapters = static_cast<bool>(c.options.adapters), blind = c.blind](train::Engine& engine) {
    if (adapters) randomise_b(engine);
    if (blind) blind_routers(engine);
  }};
}

class RandomSteps : public MeshTest, public ::testing::WithParamInterface<std::uint32_t> {};

// The bound of StepOfOneRank: gamma(2^12) relative to the norm of the result, and a factor of 2 for cancellation.
TEST_P(RandomSteps, AreThoseOfOneRank) {
  const std::uint32_t begin = GetParam() * kCasesOfABatch;
  for (std::uint32_t number = begin; number < begin + kCasesOfABatch && !HasFailure(); ++number) {
    Draws draws(number);
    const RandomCase c = random_case(draws, "fp64");
    SCOPED_TRACE(concat("case ", number, ": ", name_of(c)));
    const Beside beside = before_steps(c);
    const Steps steps{.count = 1, .micro_batches = c.micro_batches};
    expect_same_step(run_mesh(c.options, c.layout, steps, beside), run_mesh(c.options, kAlone, steps, beside),
                     2 * gamma(4096, kUnitRoundoffF64));
  }
}

// Also compares the peak of each rank's memory with its plan, as every run of a mesh does.
TEST_P(RandomSteps, HaveBitsThatDoNotDependOnWhatARankKeeps) {
  const std::vector<std::string> precisions = all_precisions();
  const std::uint32_t begin = GetParam() * kCasesOfABatch;
  for (std::uint32_t number = begin; number < begin + kCasesOfABatch && !HasFailure(); ++number) {
    Draws draws(~number);
    RandomCase c = random_case(draws, precisions[draws.below(precisions.size())]);
    SCOPED_TRACE(concat("case ", number, ": ", name_of(c)));
    const Steps steps{.count = 2, .micro_batches = c.micro_batches};
    const RunState expected = run_mesh(c.options, c.layout, steps, before_steps(c));
    c.options.checkpointing = draws.one_of({Checkpointing::none, Checkpointing::selective, Checkpointing::full});
    c.options.full_blocks = draws.one_of<int>({0, 1, std::numeric_limits<int>::max()});
    c.options.storage.offload_slot = draws.one_of<std::size_t>({0, 4096});
    if (!c.options.recipe.is_fp8() || c.options.recipe.w.tile == ScaleTile::tensor || c.options.recipe.name == "fp8_block")
      c.options.recipe.weight_transpose_cache = draws.once_in(2);
    // Lanes add up sharded gradients, and the two parts of a tied head's gradient, in another order.
    if (c.layout.gradients == Gradients::whole && !c.options.model.tied_head) c.layout.lanes = 1;
    SCOPED_TRACE(concat("against checkpointing ", static_cast<int>(c.options.checkpointing), " of ", c.options.full_blocks,
                        " blocks, offload ", c.options.storage.offload_slot));
    expect_same_bits(run_mesh(c.options, c.layout, steps, before_steps(c)), expected);
  }
}

// Only the norm of the gradient is added up in another order, so nothing is clipped.
TEST_P(RandomSteps, HaveTheBitsOfOneStage) {
  const std::vector<std::string> precisions = all_precisions();
  const std::uint32_t begin = (kBatches + GetParam()) * kCasesOfABatch;
  for (std::uint32_t number = begin; number < begin + kCasesOfABatch && !HasFailure(); ++number) {
    Draws draws(number);
    RandomCase c = random_case(draws, precisions[draws.below(precisions.size())]);
    if (c.layout.mesh.stages().count == 1) continue;
    SCOPED_TRACE(concat("case ", number, ": ", name_of(c)));
    c.options.optimizer.max_grad_norm = 0;
    const Steps steps{.count = 2, .micro_batches = c.micro_batches};
    const RunState actual = run_mesh(c.options, c.layout, steps, before_steps(c));
    c.layout.mesh = c.layout.mesh.with(Stages{});
    RunState expected = run_mesh(c.options, c.layout, steps, before_steps(c));
    EXPECT_NEAR(actual.taken.norm, expected.taken.norm, 1e-12 * expected.taken.norm);
    expected.taken.norm = actual.taken.norm;
    expect_same_bits(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Batch, RandomSteps, ::testing::Range(0u, kBatches));

}  // namespace
}  // namespace octet::testing
