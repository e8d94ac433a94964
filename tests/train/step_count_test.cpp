// Steps that the meta device counts. What is sent has a closed form, and the time follows from streams that run in parallel.
#include "octet/train/step_count.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "support/bounds.h"
#include "support/shard_traffic.h"
#include "support/step_record.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;
using train::StepCount;

constexpr std::int64_t kVocab = 1024, kDim = 512, kFfn = 1024, kLayers = 4, kHeads = 4, kKvHeads = 2, kHeadDim = 64;
constexpr double kBlock = kDim * kHeadDim * (2 * kHeads + 2 * kKvHeads) + 3 * kDim * kFfn;  // weights of a block's linears
constexpr double kNorm = kDim, kTable = kVocab * kDim;
constexpr double kParameters = kLayers * (kBlock + 2 * kNorm) + kNorm + 2 * kTable;
// Bytes that are gathered: linears as codes, everything else in BF16.
constexpr double kBlockBytes = kBlock + 2 * 2 * kNorm, kEdgeBytes = 2 * kTable + 2 * kTable + 2 * kNorm;

train::EngineOptions options_of(const Layout& layout, const std::string& recipe = "fp8_delayed") {
  train::EngineOptions options = tiny_options(recipe);
  options.model = {.vocab = kVocab,
                   .dim = kDim,
                   .ffn = kFfn,
                   .layers = kLayers,
                   .heads = kHeads,
                   .kv_heads = kKvHeads,
                   .head_dim = kHeadDim,
                   .max_position = 128};
  options.seq_len = 128;
  options.layout = layout;
  return options;
}

struct Result {
  parallel::Groups groups;
  StepCount count;
  // Returns what one group sends in operations of one kind.
  comm::Traffic sent(const comm::Group& group, std::string_view op) const {
    comm::Traffic sum;
    for (const auto* ops : {&count.compute, &count.params}) {
      for (const OpTime& time : *ops) {
        if (time.work.group != group.name() || time.op != op) continue;
        sum.bytes += time.work.bytes;
        sum.messages += time.calls;
      }
    }
    return sum;
  }
  double bytes(const comm::Group& group, std::string_view op) const { return sent(group, op).bytes; }
  double seconds(const std::vector<OpTime>& ops) const {
    double sum = 0;
    for (const OpTime& op : ops) sum += op.seconds;
    return sum;
  }
};

// Every op takes 1 µs, the squares of many gradients 10 µs, and every exchange `wire_s`.
Result count(const train::EngineOptions& options, std::int64_t micro_batches, double wire_s = 1e-6, bool tensor_reaches = false) {
  Result result{.groups = parallel::silent_groups(options.layout.mesh, options.rank, tensor_reaches), .count = {}};
  const auto seconds = [&](std::string_view op, const Work& work) {
    return !work.group.empty() ? wire_s : op == "sum_squares" ? 1e-5 : 1e-6;
  };
  result.count = train::count_step(options, result.groups, seconds, micro_batches);
  return result;
}
Result count(const Layout& layout, std::int64_t micro_batches, double wire_s = 1e-6, const std::string& recipe = "fp8_delayed") {
  return count(options_of(layout, recipe), micro_batches, wire_s);
}

TEST(StepCount, KeptWeightsAreGatheredAndWholeGradientsReducedOnceAStep) {
  for (const std::int64_t micro_batches : {1, 2, 3, 7}) {
    const Result r = count({.mesh = Mesh({1, 4, 1, 1})}, micro_batches);
    EXPECT_EQ(r.bytes(*r.groups.shards, "all_gather"), 0.75 * (kLayers * kBlockBytes + kEdgeBytes)) << micro_batches;
    EXPECT_EQ(r.bytes(*r.groups.shards, "reduce_scatter"), 0.75 * 4 * kParameters) << micro_batches;
    EXPECT_EQ(r.bytes(*r.groups.replicas, "all_reduce"), 0) << micro_batches;
  }
}

// Weights are sent as codes of one byte, with the amaxes of their tiles. Recipes with row or MX scales send codes in both
// orientations.
TEST(StepCount, ShardsSendWhatTheyMustInEveryRecipe) {
  for (const std::string& recipe : all_recipes()) {
    for (const parallel::Kept& kept : parallel::kept_order(4, 2)) {
      for (const std::int64_t micro_batches : {1, 2, 3, 7}) {
        const train::EngineOptions options =
            options_of({.mesh = Mesh({1, 4, 1, 1}), .weights = kept.weights, .gradients = kept.gradients}, recipe);
        const Result r = count(options, micro_batches);
        const ShardTraffic expected = shard_traffic(options, micro_batches);
        const auto expect_sent = [&](const char* op, const comm::Traffic& traffic) {
          const comm::Traffic sent = r.sent(*r.groups.shards, op);
          EXPECT_EQ(sent.bytes, traffic.bytes) << recipe << ", " << op << ", " << micro_batches;
          EXPECT_EQ(sent.messages, traffic.messages) << recipe << ", " << op << ", " << micro_batches;
        };
        expect_sent("all_gather", expected.all_gather);
        expect_sent("reduce_scatter", expected.reduce_scatter);
        expect_sent("all_reduce", expected.all_reduce);
      }
    }
  }
}

TEST(StepCount, ShardedGradientsAreReducedEveryMicroBatch) {
  for (const std::int64_t micro_batches : {1, 2, 3, 7}) {
    const Result r = count({.mesh = Mesh({1, 4, 1, 1}), .gradients = Gradients::sharded}, micro_batches);
    EXPECT_EQ(r.bytes(*r.groups.shards, "reduce_scatter"), static_cast<double>(micro_batches) * 0.75 * 4 * kParameters);
    if (micro_batches < 3) continue;
    EXPECT_TRUE(r.count.each_compute.empty());
    ASSERT_EQ(r.count.each_params.size(), 1u) << "kept weights are there";
    EXPECT_EQ(r.count.each_params.front().work.bytes, 0.75 * 4 * kParameters);
  }
}

// Two lanes send the same rows. While those of one lane are under way the other one computes, so that they cost nothing but at
// the end of a pass.
TEST(StepCount, LanesHideTheExchangesOfExperts) {
  train::EngineOptions options = options_of({.mesh = Mesh({1, 2, 1, 1}, 2)});
  options.model.family = "mixtral";
  options.model.experts = 4;
  options.model.experts_per_token = 2;
  const auto counted = [&](int lanes, std::int64_t micro_batches, double wire_s) {
    options.layout.lanes = lanes;
    return count(options, micro_batches, wire_s);
  };
  constexpr double kWire = 2e-6;  // less than a part of a block computes
  const Result one = counted(1, 6, kWire), two = counted(2, 6, kWire);
  const comm::Traffic in_turn = one.sent(*one.groups.expert, "all_to_all"), beside = two.sent(*two.groups.expert, "all_to_all");
  EXPECT_EQ(in_turn.messages, 4 * kLayers * 6);
  EXPECT_EQ(beside.messages, in_turn.messages);
  EXPECT_EQ(beside.bytes, in_turn.bytes);
  EXPECT_LT(two.count.tasks.size(), 2 * one.count.tasks.size()) << "units are opened once for both lanes";
  // The seconds that exchanges add to two micro-batches more.
  const auto cost = [&](int lanes) {
    const auto more = [&](double wire_s) {
      return counted(lanes, 6, wire_s).count.seconds - counted(lanes, 4, wire_s).count.seconds;
    };
    return more(kWire) - more(0);
  };
  EXPECT_NEAR(cost(1), 2 * kLayers * (4 + 1) * kWire, 1e-9) << "rows to and fro, in both directions, and their counts";
  EXPECT_LT(cost(2), 0.2 * cost(1));
}

// Where forward ends and backward begins, and where backward ends and the next forward begins, two blocks are still in their
// slots and are not gathered again.
TEST(StepCount, ReshardedWeightsAreGatheredForEachUse) {
  for (const std::int64_t micro_batches : {1, 2, 3, 7}) {
    const Result r = count({.mesh = Mesh({1, 4, 1, 1}), .weights = Weights::resharded}, micro_batches);
    const auto m = static_cast<double>(micro_batches);
    const double blocks = kLayers + (kLayers - 2) + (m - 1) * 2 * (kLayers - 2);
    EXPECT_EQ(r.bytes(*r.groups.shards, "all_gather"), 0.75 * (blocks * kBlockBytes + m * kEdgeBytes)) << micro_batches;
  }
}

TEST(StepCount, HybridMeshesReduceTheirPartsOverReplicasOnceAStep) {
  const Layout layout{.mesh = Mesh({2, 4, 1, 1}), .gradients = Gradients::sharded, .reduce = DType::bf16};
  const Result r = count(layout, 5);
  EXPECT_EQ(r.bytes(*r.groups.shards, "reduce_scatter"), 5 * 0.75 * 2 * kParameters);
  // The scalars are the sum of squares, the loss, its tokens and the request to stop, in F64. The amaxes belong to the operands of
  // four linears in each block.
  const double scalars = 4 * sizeof(double), amaxes = kLayers * 4 * 3 * sizeof(float);
  EXPECT_EQ(r.bytes(*r.groups.replicas, "all_reduce"), 2 * kParameters / 4 + scalars + amaxes);
}

// docs/parallelism.md gives the formula: the K and V of a rank are n = 2 G K B S / c numbers.
TEST(StepCount, ContextGroupsExchangeKeysAndValuesEveryMicroBatch) {
  const Result r = count({.mesh = Mesh({1, 1, 4, 1})}, 6);
  const double n = 2.0 * kKvHeads * kHeadDim * 2 * 128 / 4 * 2;  // bytes, for two sequences
  EXPECT_EQ(r.bytes(*r.groups.context, "all_gather"), 6 * kLayers * 2 * 3 * n);
  EXPECT_EQ(r.bytes(*r.groups.context, "reduce_scatter"), 6 * kLayers * 3 * n);
}

// In docs/parallelism.md, n is the number of bytes of a rank's share of the activations in BF16, and m the number of bytes
// gathered.
constexpr double kTokens = 2 * 128;
double share_bytes(int ranks) { return kTokens * kDim / ranks * 2; }
// Embedding and head exchange one share each way, and cross-entropy needs three numbers for each token.
double edge_bytes(int ranks) { return (ranks - 1) * (4 * share_bytes(ranks) + 3 * 4 * kTokens); }

TEST(StepCount, TensorGroupsExchangeActivationsEveryMicroBatch) {
  for (const std::string recipe : {"fp8_delayed", "bf16"}) {
    for (const int t : {2, 4}) {
      const Result r = count(options_of({.mesh = Mesh({1, 1, 1, t})}, recipe), 5);
      const double n = (t - 1) * share_bytes(t), m = recipe == "bf16" ? n : n / 2;
      const double scattered = 5 * (kLayers * 4 * n + 2 * n);
      EXPECT_EQ(r.bytes(*r.groups.tensor, "reduce_scatter"), scattered) << recipe << " " << t;
      EXPECT_EQ(r.bytes(*r.groups.tensor, "all_gather"), 5 * (kLayers * 4 * m + edge_bytes(t) - 2 * n)) << recipe << " " << t;
      EXPECT_TRUE(r.count.params.empty()) << "all of it is on the way of the computation";
      EXPECT_NEAR(r.count.seconds, r.seconds(r.count.compute), 1e-12);
    }
  }
}

// Ranks that reach each other fetch the same bytes, but for the gradient of the embedding, and products hide them.
TEST(StepCount, TensorGroupsThatReachEachOtherHideTheirExchanges) {
  for (const std::string recipe : {"fp8_delayed", "bf16"}) {
    const train::EngineOptions options = options_of({.mesh = Mesh({1, 1, 1, 2})}, recipe);
    constexpr double kWire = 0.9e-6;  // less than a product
    const Result r = count(options, 5, kWire, true);
    const double n = share_bytes(2), m = recipe == "bf16" ? n : n / 2;
    EXPECT_EQ(r.bytes(*r.groups.tensor, "reduce_scatter"), 0) << recipe;
    EXPECT_EQ(r.bytes(*r.groups.tensor, "fetch"), 5 * (kLayers * 4 * (n + m) + 3 * n)) << recipe;
    EXPECT_EQ(r.bytes(*r.groups.tensor, "all_gather"), 5 * (edge_bytes(2) - 3 * n)) << recipe;
    const auto cost = [&](bool reaches) {
      return count(options, 5, kWire, reaches).count.seconds - count(options, 5, 0, reaches).count.seconds;
    };
    EXPECT_LT(cost(true), 0.3 * cost(false)) << recipe;
  }
}

// All ranks hold the norms. On four ranks, two ranks hold each of the two heads of keys and values. Their gradients are summed
// once a step.
TEST(StepCount, TensorGroupsSumWhatSeveralHoldOnceAStep) {
  for (const std::int64_t micro_batches : {1, 6}) {
    const double norms = 4 * (2 * kLayers + 1) * kNorm, heads = 4.0 * kLayers * 2 * kKvHeads * kHeadDim * kDim;
    const Result two = count({.mesh = Mesh({1, 1, 1, 2})}, micro_batches),
                 four = count({.mesh = Mesh({1, 1, 1, 4})}, micro_batches);
    // The rest consists of losses, amaxes and found_inf.
    const double rest = two.bytes(*two.groups.tensor, "all_reduce") - norms;
    EXPECT_GE(rest, 0);
    EXPECT_LT(rest, 2e3);
    EXPECT_DOUBLE_EQ(four.bytes(*four.groups.tensor, "all_reduce"), 1.5 * (norms + heads + rest));
  }
}

TEST(StepCount, WhatIsComputedAgainIsExchangedAgain) {
  const int t = 2;
  const double n = (t - 1) * share_bytes(t), m = n / 2;
  const auto sent = [&](nn::Checkpointing mode, std::string_view op) {
    train::EngineOptions options = options_of({.mesh = Mesh({1, 1, 1, t})});
    options.checkpointing = mode;
    const Result r = count(options, 4);
    return r.bytes(*r.groups.tensor, op) / 4;
  };
  using nn::Checkpointing;
  EXPECT_EQ(sent(Checkpointing::selective, "all_gather") - sent(Checkpointing::none, "all_gather"), kLayers * 2 * m);
  EXPECT_EQ(sent(Checkpointing::selective, "reduce_scatter"), sent(Checkpointing::none, "reduce_scatter"));
  EXPECT_EQ(sent(Checkpointing::full, "all_gather") - sent(Checkpointing::none, "all_gather"), kLayers * 2 * m);
  EXPECT_EQ(sent(Checkpointing::full, "reduce_scatter") - sent(Checkpointing::none, "reduce_scatter"), kLayers * n);
}

// The shard axis divides what a rank of the tensor axis holds: half of each linear, and the norms.
TEST(StepCount, ShardsOfCutLayersAreGathered) {
  const Result r = count({.mesh = Mesh({1, 2, 1, 2})}, 3);
  const double parameters = kLayers * (kBlock / 2 + 2 * kNorm) + kNorm + kTable;
  EXPECT_EQ(r.bytes(*r.groups.shards, "all_gather"), 0.5 * (kLayers * (kBlock / 2 + 4 * kNorm) + 2 * kTable + 2 * kNorm));
  EXPECT_EQ(r.bytes(*r.groups.shards, "reduce_scatter"), 0.5 * 4 * parameters);
}

// A message has the activations of a micro-batch, or their gradients: 2 x 128 tokens of 512 numbers in BF16. Each rank of the
// tensor axis sends its tokens.
TEST(StepCount, StagesSendAMessageForEachMicroBatchAndChunk) {
  const double message = 2 * 128 * 512 * 2;
  const auto sent = [](const Mesh& mesh, int rank, std::int64_t micro_batches) {
    train::EngineOptions options = options_of({.mesh = mesh});
    options.rank = rank;
    const Result r = count(options, micro_batches);
    const auto bytes = [&](const std::unique_ptr<comm::Group>& group) { return group ? r.bytes(*group, "send") : 0.0; };
    // Activations go to the stage behind, gradients to the stage before.
    return std::pair(bytes(r.groups.behind[0]), bytes(r.groups.before[1]));
  };
  const parallel::Stages two{.count = 2}, chunks{.count = 2, .chunks = 2};
  EXPECT_EQ(sent(Mesh({1, 1, 1, 1}, 1, two), 0, 6), std::pair(6 * message, 0.0));
  EXPECT_EQ(sent(Mesh({1, 1, 1, 1}, 1, two), 1, 6), std::pair(0.0, 6 * message));
  EXPECT_EQ(sent(Mesh({1, 1, 1, 2}, 1, two), 0, 6), std::pair(3 * message, 0.0));
  EXPECT_EQ(sent(Mesh({1, 1, 1, 1}, 1, {.count = 4}), 1, 6), std::pair(6 * message, 6 * message));
  // With two chunks the first stage also receives from the last one, and sends gradients to it.
  EXPECT_EQ(sent(Mesh({1, 1, 1, 1}, 1, chunks), 0, 6), std::pair(12 * message, 6 * message));
  EXPECT_EQ(sent(Mesh({1, 1, 1, 1}, 1, chunks), 1, 6), std::pair(6 * message, 12 * message));
}

double traffic_of(const parallel::Groups& groups) {
  double bytes = 0;
  for (const auto& group : {&groups.replicas, &groups.shards, &groups.context, &groups.tensor})
    bytes += (*group)->traffic().bytes;
  return bytes;
}

// The groups' totals consist of the engine's first gathers, a step of one micro-batch before the counted step, and the counted
// step.
TEST(StepCount, GroupsCountTheSame) {
  const Layout layout{.mesh = Mesh({2, 2, 2, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  const parallel::Groups groups = parallel::silent_groups(layout.mesh, 0);
  const auto device = make_device(DeviceKind::meta);
  train::Engine(options_of(layout), *device, groups).refresh();
  EXPECT_GT(traffic_of(groups), 0) << "the first units of the first step";
  const Result one = count(layout, 1), two = count(layout, 2);
  const auto bytes = [](const Result& r) {
    double sum = 0;
    for (const auto* ops : {&r.count.compute, &r.count.params}) {
      for (const OpTime& op : *ops) sum += op.work.group.empty() ? 0 : op.work.bytes;
    }
    return sum;
  };
  EXPECT_EQ(traffic_of(one.groups), traffic_of(groups) + 2 * bytes(one));
  EXPECT_EQ(traffic_of(two.groups), traffic_of(groups) + bytes(one) + bytes(two));
  for (comm::Group* group :
       {two.groups.replicas.get(), two.groups.shards.get(), two.groups.context.get(), two.groups.tensor.get()}) {
    EXPECT_GT(group->traffic().bytes, 0) << group->name();
  }
}

// One GPU sends nothing, and its step takes the sum of its ops. Each further micro-batch takes the same time.
TEST(StepCount, OneRankTakesTheSumOfItsOps) {
  const Result one = count(Layout(), 1), two = count(Layout(), 2), nine = count(Layout(), 9);
  EXPECT_TRUE(one.count.params.empty());
  // The times of all ops are added up once by name and once in the order of time.
  double ops = 0;
  for (const OpTime& op : nine.count.compute) ops += static_cast<double>(op.calls);
  const double rounding = 2 * gamma(ops, kUnitRoundoffF64) * nine.count.seconds;
  EXPECT_NEAR(one.count.seconds, one.seconds(one.count.compute), rounding);
  EXPECT_NEAR(nine.count.seconds - two.count.seconds, 7 * (two.count.seconds - one.count.seconds), 8 * rounding);
}

// The first units are gathered while the optimizer runs, and their gradients are reduced while the norm of the others is
// computed. Only the sums and the amaxes add to the time of a step.
TEST(StepCount, ExchangesHideBehindTheComputationUntilTheyAreTooSlow) {
  const Layout layout{.mesh = Mesh({1, 4, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  const double fast = 1e-7;
  // Attention backward takes longer than the reduction beside it. The marks of waits, which are not ops, take no time.
  const auto count_with = [&](double wire_s) {
    const parallel::Groups groups = parallel::silent_groups(layout.mesh, 0, false);
    const auto seconds = [&](std::string_view op, const Work& work) {
      if (op == "wait for ranks") return 0.0;
      return !work.group.empty() ? wire_s : op == "sum_squares" || op == "attention_backward" ? 1e-5 : 1e-6;
    };
    return train::count_step(options_of(layout), groups, seconds, 4);
  };
  const StepCount once = count_with(fast), twice = count_with(2 * fast);
  double ops = 0;
  for (const auto* stream : {&once.compute, &once.params}) {
    for (const OpTime& op : *stream) ops += static_cast<double>(op.calls);
  }
  EXPECT_NEAR(twice.seconds - once.seconds, 2 * fast, 4 * gamma(ops, kUnitRoundoffF64) * twice.seconds);
  const Result slow = count(layout, 4, 1.0);
  const double params = slow.seconds(slow.count.params);
  EXPECT_GE(slow.count.seconds, params) << "the wire never rests";
  EXPECT_LE(slow.count.seconds, params + slow.seconds(slow.count.compute));
  EXPECT_GT(params, 200) << "exchanges";
  const auto waits = [](const OpTime& op) { return std::string_view(op.op) == "wait for ranks"; };
  EXPECT_TRUE(std::any_of(slow.count.compute.begin(), slow.count.compute.end(), waits)) << "what a profile says of them";
}

train::EngineOptions mixture_of(std::int64_t experts, std::int64_t layers, const std::string& recipe, const Layout& layout) {
  train::EngineOptions options = tiny_options(recipe);
  options.model.dim = options.model.ffn = 128;
  options.model.layers = layers;
  options.model.experts = experts;
  options.model.experts_per_token = 2;
  options.layout = layout;
  return options;
}

// Returns how often the second step of rank 0 enqueues each op outside of its micro-batch.
std::map<std::string, int> launches(const train::EngineOptions& options) {
  StepRecord record;
  const auto device = make_recording_device(record);
  const parallel::Groups groups = parallel::silent_groups(options.layout.mesh, 0);
  train::Engine engine(options, *device, groups);
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  engine.refresh();
  for (std::uint32_t step = 1; step <= 2; ++step) {
    record.heading(step == 2 ? "counted" : "begin");
    engine.begin_step();
    record.heading("micro-batch");
    engine.forward_backward(tokens.batch(), nullptr);
    record.heading(step == 2 ? "counted" : "update");
    engine.apply(1e-3, step);
  }
  record.heading("end");
  std::map<std::string, int> result;
  std::istringstream lines(record.text());
  bool counted = false;
  for (std::string line, number, op; std::getline(lines, line);) {
    std::istringstream words(line);
    words >> number >> op;
    if (number == "stream") counted = false;
    if (number == "--") counted = op == "counted";
    if (counted && number != "--") ++result[op];
  }
  return result;
}

TEST(Launches, OfAnOptimizerStepDoNotDependOnTheNumberOfExpertsOrLayers) {
  for (const std::string& recipe : all_recipes()) {
    if (recipe == "fp32") continue;  // only the CPU computes it
    const std::map<std::string, int> few = launches(mixture_of(2, 2, recipe, {}));
    EXPECT_EQ(few, launches(mixture_of(64, 2, recipe, {}))) << recipe << ": experts";
    EXPECT_EQ(few, launches(mixture_of(2, 6, recipe, {}))) << recipe << ": layers";
    EXPECT_EQ(few.at("adamw"), 1) << recipe;
    EXPECT_EQ(few.at("sum_squares"), 1) << recipe;
    EXPECT_LE(few.at("zero"), 4) << recipe << ": sums, losses of routers, gradients, amaxes of weights";
  }
}

// What ranks exchange is one message for each tensor, which NCCL sends in a batch, and codes are transposed where they arrive.
// Everything else is as often as on one rank.
TEST(Launches, OfRanksThatHoldShardsDependOnNothingButTheExchange) {
  for (const std::string& recipe : all_recipes()) {
    if (recipe == "fp32") continue;
    for (const parallel::Gradients gradients : {parallel::Gradients::whole, parallel::Gradients::sharded}) {
      const Layout layout{.mesh = Mesh({1, 2, 1, 1}), .weights = parallel::Weights::resharded, .gradients = gradients};
      std::map<std::string, int> few = launches(mixture_of(2, 2, recipe, layout)),
                                 many = launches(mixture_of(64, 2, recipe, layout));
      for (const char* op : {"all_gather", "reduce_scatter", "transpose_codes", "cast", "add"}) few.erase(op), many.erase(op);
      EXPECT_EQ(few, many) << recipe;
      EXPECT_EQ(few.at("adamw"), 2) << recipe << ": the first units, and the others";
    }
  }
}

// Replicas add up their gradients in place, beside the computation. The gradients that a step begins with are zero only behind
// that.
TEST(Rehearsal, EndsBeforeTheFirstStepBegins) {
  train::EngineOptions options = tiny_options("fp8_delayed");
  options.layout = {.mesh = Mesh({2, 1, 1, 1})};
  StepRecord record;
  const auto device = make_recording_device(record);
  const parallel::Groups groups = parallel::silent_groups(options.layout.mesh, 0);
  train::Engine engine(options, *device, groups);
  engine.rehearse();
  std::istringstream lines(record.text());
  std::string line, stream, last_reduction;
  std::vector<std::string> waits;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string number, op;
    words >> number >> op;
    if (number == "stream") stream = op;
    if (op == "all_reduce") last_reduction = concat(" after ", stream, ":", number);
    if (op == "zero") waits.push_back(line);
  }
  ASSERT_NE(last_reduction, "");
  EXPECT_TRUE(std::any_of(waits.begin(), waits.end(), [&](const std::string& zero) { return zero.ends_with(last_reduction); }))
      << record.text();
}

}  // namespace
}  // namespace octet::testing
