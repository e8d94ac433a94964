// What ranks fetch from each other's memory, the parts of weights and the K and V that forward has left: ranks as threads, which
// do reach each other's memory, take the steps of ranks that gather, to the bit.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using nn::Checkpointing;
using parallel::Layout;
using parallel::Mesh;

constexpr int kMostRanks = 4;

// What ranks show each other, by context group and rank in it.
struct Shown {
  std::mutex mutex;
  std::map<std::string, std::array<std::byte*, kMostRanks>> memory;
  std::int64_t fetches = 0;
  std::byte*& of(const std::string& group, int rank) { return memory[group].at(static_cast<std::size_t>(rank)); }
};

// A group whose ranks share an address space.
class ReachingGroup final : public comm::Group {
 public:
  ReachingGroup(std::unique_ptr<comm::Group> group, Shown& shown, Device& device)
      : Group(group->name(), group->rank(), group->size()),
        group_(std::move(group)),
        shown_(shown),
        scratch_(device, MemoryCategory::workspace, std::size_t{1} << 22) {}
  void share(Queue& queue, Arena&, void* memory, std::size_t bytes) override {
    own_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    {
      const std::lock_guard lock(shown_.mutex);
      shown_.of(name(), rank()) = own_;
    }
    group_->barrier(queue);
  }
  bool reaches(const Tensor& x) const override { return at(x) >= own_ && at(x) < own_ + bytes_; }
  void unshare(Queue& queue) override {
    bytes_ = 0;
    group_->barrier(queue);
  }

 private:
  static const std::byte* at(const Tensor& x) { return static_cast<const std::byte*>(x.data); }
  void run(Queue& queue, const comm::AllGather& op) override {
    if (!reaches(op.x)) return group_->all_gather(queue, scratch_, op);
    comm::Fetch parts{.x = op.x, .y = {}};
    for (int peer = 0; peer < size(); ++peer) {
      parts.y.push_back(op.y.slice_rows(peer * op.x.elements(), (peer + 1) * op.x.elements()));
    }
    run(queue, parts);
  }
  void run(Queue& queue, const comm::ReduceScatter& op, const Tensor&) override { group_->reduce_scatter(queue, scratch_, op); }
  void run(Queue& queue, const comm::AllReduce& op, const Tensor&) override { group_->all_reduce(queue, scratch_, op); }
  void run(Queue& queue, const comm::AllToAll& op) override { group_->all_to_all(queue, scratch_, op); }
  void run(Queue& queue, const comm::Broadcast& op) override { group_->broadcast(queue, op); }
  void run_barrier(Queue& queue) override { group_->barrier(queue); }
  void run_fence(Queue& queue) override { group_->barrier(queue); }
  void run(Queue&, const comm::Fetch& op) override {
    const auto offset = static_cast<std::size_t>(at(op.x) - own_);
    const std::size_t width = size_of(op.x.dtype);
    for (int peer = 0; peer < size(); ++peer) {
      const std::byte* theirs = nullptr;
      {
        const std::lock_guard lock(shown_.mutex);
        theirs = shown_.of(name(), peer) + offset;
        ++shown_.fetches;
      }
      const Tensor& y = op.y[static_cast<std::size_t>(peer)];
      for (std::int64_t row = 0; row < y.rows(); ++row) {
        std::memcpy(behind(y.data, static_cast<std::size_t>(row * y.row_stride) * width),
                    theirs + static_cast<std::size_t>(row * op.x.row_stride) * width, static_cast<std::size_t>(y.cols()) * width);
      }
    }
  }

  std::unique_ptr<comm::Group> group_;
  Shown& shown_;
  Arena scratch_;
  std::byte* own_ = nullptr;
  std::size_t bytes_ = 0;
};

// Half of each sequence is one word: the ranks in whose parts it lies send all of it to the same experts.
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
  // Two steps of two micro-batches each, each with an evaluation after it; `shown`, where given, is what ranks reach.
  static RunState run(const train::EngineOptions& of_all, const Layout& layout, Shown* shown) {
    RunState state;
    std::mutex mutex;
    ThreadStore store;
    run_ranks(layout.mesh.ranks(), [&](int rank) {
      train::EngineOptions options = of_all;
      options.layout = layout;
      options.rank = rank;
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      parallel::Groups groups = thread_groups(store, layout.mesh, rank, *device);
      for (auto* group : {&groups.context, &groups.shards, &groups.apart}) {
        if (!shown || !*group || (*group)->size() == 1) continue;
        *group = std::make_unique<ReachingGroup>(std::move(*group), *shown, *device);
      }
      train::Engine engine(options, *device, groups);
      engine.model().parameters().initialise(engine.queue(), 7);
      engine.refresh();
      Taken taken;
      for (std::uint32_t step = 1; step <= 2; ++step) {
        engine.zero_gradients(2);
        for (std::uint32_t micro = 0; micro < 2; ++micro) {
          const auto coordinate = static_cast<std::uint32_t>(layout.mesh.data_coordinate(rank));
          engine.forward_backward(dull_middle(options, 100 * coordinate + 10 * step + micro).batch(), nullptr);
        }
        engine.apply(1e-3, step);
        evaluate_a_row(engine);
        const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
        taken.losses.push_back(scalars.loss_sum / scalars.token_count);
        taken.norm = scalars.grad_norm;
      }
      engine.settle_scales();
      engine.close();
      const std::lock_guard lock(mutex);
      state.add(engine, taken);
    });
    return state;
  }
  // Whether anything was fetched.
  static bool takes_the_same_steps(const train::EngineOptions& options, const Layout& layout) {
    Shown shown;
    const RunState gathered = run(options, layout, nullptr), fetched = run(options, layout, &shown);
    EXPECT_EQ(fetched.taken.losses, gathered.taken.losses);
    EXPECT_EQ(fetched.taken.norm, gathered.taken.norm);
    EXPECT_TRUE(fetched.gradients == gathered.gradients);
    EXPECT_TRUE(fetched.weights == gathered.weights);
    return shown.fetches > 0;
  }
};

const Layout kTwoSequences{.mesh = Mesh({1, 1, 2, 1})}, kFourSequences{.mesh = Mesh({1, 1, 4, 1})},
    kShards{.mesh = Mesh({1, 2, 2, 1}), .weights = parallel::Weights::resharded, .gradients = parallel::Gradients::sharded};

TEST_F(Fetched, TakesTheStepsOfRanksThatGather) {
  for (const models::DecoderConfig& model : {tiny_config(), tiny_gpt_neox_config(true)}) {
    for (const auto& [checkpointing, layout] :
         {std::pair{Checkpointing::none, kFourSequences}, {Checkpointing::selective, kShards}, {Checkpointing::full, kTwoSequences}}) {
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

// Where nothing hides keys they come in another order.
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

train::EngineOptions mixture_options() {
  train::EngineOptions options = tiny_options("bf16");
  options.model.family = "mixtral";
  options.model.ffn = 64;
  options.model.experts = 4;
  options.model.experts_per_token = 2;
  return options;
}

// An expert has as many rows as tokens chose it, up to a multiple of 128: what a rank keeps of one layer moves what it keeps of
// the next, and only what a block computes again lies in the same place on all ranks. Others gather.
TEST_F(Fetched, OfAMixtureWhereRanksKeepThingsInTheSamePlaces) {
  for (const auto checkpointing : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
    train::EngineOptions options = mixture_options();
    options.model.max_position = options.seq_len = 512;
    options.model.layers = 3;
    options.micro_batch_size = 1;
    options.checkpointing = checkpointing;
    SCOPED_TRACE(concat("checkpointing ", static_cast<int>(checkpointing)));
    EXPECT_EQ(takes_the_same_steps(options, kTwoSequences), checkpointing == Checkpointing::full);
  }
}

// Experts lie in parts of another group.
TEST_F(Fetched, PartsOfWeightsAndOfExperts) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_rowwise"}) {
    for (const int expert : {1, 2}) {
      train::EngineOptions options = mixture_options();
      options.recipe = recipe_named(recipe);
      options.micro_batch_size = 1;
      SCOPED_TRACE(recipe + concat(", expert ", expert));
      EXPECT_TRUE(takes_the_same_steps(options, {.mesh = Mesh({1, 4, 1, 1}, expert),
                                                 .weights = parallel::Weights::resharded,
                                                 .gradients = parallel::Gradients::sharded}));
    }
  }
}

}  // namespace
}  // namespace octet::testing
