// Ranks can fetch the shards of weights, the K and V that forward has kept, and the tokens of the tensor axis from each other's
// memory. Threads can reach each other's memory. They must take the same steps as ranks that gather, bit for bit.
#include <gtest/gtest.h>

#include "support/emulated_tiles.h"
#include "support/mesh_run.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

using nn::Checkpointing;

// Makes half of each sequence a single repeated word. The ranks that hold this half send all its tokens to the same experts.
Tokens dull_middle(const train::EngineOptions& options, std::uint32_t subject) {
  const std::int64_t count = options.seq_len * options.micro_batch_size;
  Tokens tokens = random_tokens(count, options.model.vocab, subject);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = i % options.seq_len * 4 / options.seq_len;
    if (place == 1 || place == 2) tokens.tokens[static_cast<std::size_t>(i)] = 1;
  }
  tokens.document_starts = random_document_starts(count, options.seq_len, subject);
  return tokens;
}

class Fetched : public MeshTest {
 protected:
  // Takes two steps of two micro-batches each, with an evaluation after each step.
  static RunState run(const train::EngineOptions& of_all, const Layout& layout, ThreadRanks& threads) {
    RunState state;
    std::mutex mutex;
    run_ranks(layout.mesh.ranks(), [&](int rank) {
      train::EngineOptions options = of_all;
      options.layout = layout;
      options.rank = rank;
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      const parallel::Groups groups = threads.groups(layout.mesh, rank, *device);
      train::Engine engine(options, *device, groups);
      engine.initialise(7);
      if (options.adapters.rank > 0) randomise_b(engine);
      Taken taken;
      for (std::uint32_t step = 1; step <= 2; ++step) {
        engine.begin_step(2);
        for (std::uint32_t micro = 0; micro < 2; ++micro) {
          const auto coordinate = static_cast<std::uint32_t>(layout.mesh.data_coordinate(rank));
          engine.forward_backward(dull_middle(options, 100 * coordinate + 10 * step + micro).batch(), nullptr);
        }
        engine.apply(1e-3, step);
        evaluate_a_row(engine);
        const kernels::StepScalars scalars = engine.optimizer().read(engine.stream());
        taken.losses.push_back(scalars.loss_sum / scalars.token_count);
        taken.norm = scalars.grad_norm;
      }
      engine.settle();
      engine.close();
      const std::lock_guard lock(mutex);
      state.add(engine, taken);
    });
    return state;
  }
  // Returns whether ranks fetched anything.
  static bool takes_the_same_steps(const train::EngineOptions& options, const Layout& layout) {
    ThreadRanks apart, reaching(true);
    const RunState gathered = run(options, layout, apart), fetched = run(options, layout, reaching);
    expect_same_bits(fetched, gathered);
    return reaching.meetings().fetched() > 0;
  }
};

const Layout kTwoSequences{.mesh = Mesh({1, 1, 2, 1})}, kFourSequences{.mesh = Mesh({1, 1, 4, 1})},
    kShards{.mesh = Mesh({1, 2, 2, 1}), .weights = parallel::Weights::resharded, .gradients = parallel::Gradients::sharded};

TEST_F(Fetched, TakesTheStepsOfRanksThatGather) {
  for (const models::DecoderConfig& model : {tiny_config(), tiny_gpt_neox_config(true)}) {
    for (const auto& [checkpointing, layout] : {std::pair{Checkpointing::none, kFourSequences},
                                                {Checkpointing::selective, kShards},
                                                {Checkpointing::full, kTwoSequences}}) {
      train::EngineOptions options = tiny_options("bf16");
      options.model = model;
      options.checkpointing = checkpointing;
      options.document_mask = true;
      options.micro_batch_size = 3;
      SCOPED_TRACE(model.family + ", " + text(layout));
      EXPECT_TRUE(takes_the_same_steps(options, layout));
    }
  }
}

// Without a window, the keys may come in another order than in the sequence.
TEST_F(Fetched, KeysInOrderAndNot) {
  for (const std::int64_t window : {0, 5}) {
    for (const int ranks : {2, 3, 4}) {
      train::EngineOptions options = tiny_options("bf16");
      options.model.max_position = options.seq_len = 48;
      options.model.sliding_window = window;
      options.micro_batch_size = 3;
      SCOPED_TRACE(concat(ranks, " ranks, window ", window));
      EXPECT_TRUE(takes_the_same_steps(options, {.mesh = Mesh({1, 1, ranks, 1})}));
    }
  }
}

train::EngineOptions fetched_mixture() {
  train::EngineOptions options = tiny_options("bf16");
  options.model.family = "mixtral";
  options.model.ffn = 64;
  options.model.experts = 4;
  options.model.experts_per_token = 2;
  return options;
}

// The number of an expert's rows depends on the tokens that chose it, rounded up to a multiple of 128. What a rank keeps of one
// layer therefore moves what it keeps of the next. Only with full checkpointing does a block lie in the same place on all ranks.
// Otherwise the ranks gather.
TEST_F(Fetched, OfAMixtureWhereRanksKeepThingsInTheSamePlaces) {
  for (const auto checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
    train::EngineOptions options = fetched_mixture();
    options.model.max_position = options.seq_len = 512;
    options.model.layers = 3;
    options.micro_batch_size = 1;
    options.checkpointing = checkpointing;
    SCOPED_TRACE(concat("checkpointing ", static_cast<int>(checkpointing)));
    EXPECT_EQ(takes_the_same_steps(options, kTwoSequences), checkpointing == Checkpointing::full);
  }
}

// Experts are sharded over another group than other weights.
TEST_F(Fetched, PartsOfWeightsAndOfExperts) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_rowwise"}) {
    for (const int expert : {1, 2}) {
      train::EngineOptions options = fetched_mixture();
      options.recipe = recipe_named(recipe);
      options.micro_batch_size = 1;
      SCOPED_TRACE(recipe + concat(", expert ", expert));
      EXPECT_TRUE(takes_the_same_steps(options, {.mesh = Mesh({1, 4, 1, 1}, expert),
                                                 .weights = parallel::Weights::resharded,
                                                 .gradients = parallel::Gradients::sharded}));
    }
  }
}

// Products are divided where ranks wait for tokens: 32 or 64 of a rank, which are a multiple of 16. The 10 of a rank in the last
// case are not. Tiles give a divided product the bits of the whole one. BLAS may choose another kernel for fewer rows.
TEST_F(Fetched, TokensOfTheTensorAxis) {
  const kernels::cpu::TileKernel* const hardware = kernels::cpu::tile_kernel();
  const UseTileKernel tiles(hardware ? hardware : &kEmulatedTiles);
  const Layout pair{.mesh = Mesh({1, 1, 1, 2})}, four{.mesh = Mesh({1, 1, 1, 4})}, parts{.mesh = Mesh({1, 1, 2, 2})},
      pairs{.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  struct Case {
    const char* recipe;
    Layout layout;
    Checkpointing checkpointing;
    std::int64_t seq_len;
  };
  for (const Case& one : {Case{"bf16", pair, Checkpointing::none, 32},
                          {"bf16", four, Checkpointing::full, 32},
                          {"fp8_delayed", pair, Checkpointing::selective, 32},
                          {"fp8_delayed", four, Checkpointing::none, 32},
                          {"fp8_current", pairs, Checkpointing::full, 32},
                          {"fp8_rowwise", four, Checkpointing::none, 32},
                          {"bf16", parts, Checkpointing::selective, 64},
                          {"fp8_block", pair, Checkpointing::selective, 32},
                          {"mxfp8", pair, Checkpointing::none, 32},
                          {"fp8_delayed", four, Checkpointing::none, 10}}) {
    train::EngineOptions options = tensor_options(one.recipe);
    options.checkpointing = one.checkpointing;
    options.model.max_position = options.seq_len = one.seq_len;
    options.micro_batch_size = 4;
    SCOPED_TRACE(one.recipe + (", " + text(one.layout)));
    EXPECT_TRUE(takes_the_same_steps(options, one.layout));
  }
}

// An adapter reads all tokens at once. The output of GPT-NeoX's attention and MLP have biases.
TEST_F(Fetched, TokensOfTheTensorAxisWithAdaptersAndBiases) {
  const Layout pair{.mesh = Mesh({1, 1, 1, 2})};
  train::EngineOptions lora = adapted(tensor_options("fp8_delayed"), {"q_proj", "o_proj", "up_proj", "down_proj"});
  train::EngineOptions biases = gpt_neox_options("fp8_delayed", true);
  for (train::EngineOptions* options : {&lora, &biases}) {
    options->model.max_position = options->seq_len = 32;
    EXPECT_TRUE(takes_the_same_steps(*options, pair));
  }
}

// Ranks of a mixture may have scratches of different layouts.
TEST_F(Fetched, AMixtureGathersTokensOfTheTensorAxis) {
  train::EngineOptions options = mixture_options("fp8_delayed");
  options.model.max_position = options.seq_len = 32;
  EXPECT_FALSE(takes_the_same_steps(options, {.mesh = Mesh({1, 1, 1, 2})}));
}

}  // namespace
}  // namespace octet::testing
