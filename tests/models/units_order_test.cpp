// Tests in which order a step gathers, computes and reduces, and what waits for what. The device only logs the work.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "octet/models/decoder/decoder.h"
#include "octet/recipes/registry.h"
#include "support/trace.h"

namespace octet::models {
namespace {

using testing::Log;
using testing::LoggingDevice;
using testing::Trace;

// The names of the units, by number.
constexpr const char* kNames[] = {"embedding", "block 0", "block 1", "block 2", "head"};

DecoderConfig config_of(bool tied) {
  DecoderConfig config;
  config.vocab = 256;
  config.dim = 64;
  config.ffn = 128;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_position = 64;
  config.tied_head = tied;
  return config;
}

// Traces steps of two micro-batches on a mesh of four shards by default. A made-up optimizer updates units after each step but the last.
Trace trace_of_steps(int steps, parallel::Weights weights, parallel::Gradients gradients, bool tied = false,
                     const parallel::Mesh& mesh = parallel::Mesh({1, 4, 1, 1}), int rank = 0) {
  Trace trace;
  LoggingDevice device(trace);
  const auto stream = device.make_stream();
  const parallel::Layout layout{.mesh = mesh, .weights = weights, .gradients = gradients};
  const parallel::Groups groups = parallel::silent_groups(layout.mesh, rank);
  Decoder model(config_of(tied), recipes::make_recipe("fp8_delayed", {}), {groups.tensor->rank(), groups.tensor->size()});
  model.materialise(*stream, {}, 64, groups, layout);
  Arena stash(device, MemoryCategory::activations, 0), scratch(device, MemoryCategory::workspace, 0);
  const nn::Scope scope{.stream = *stream,
                        .stash = stash,
                        .scratch = scratch,
                        .context = *groups.context,
                        .tensor = *groups.tensor,
                        .expert = *groups.expert};
  const Buffer ids = device.allocate(64 * 4, MemoryCategory::workspace);
  const std::int64_t tokens = 64 / mesh.size(parallel::Axis::context);
  const Batch batch{.seq_len = 64, .tokens = view(ids, DType::i32, {tokens}), .targets = view(ids, DType::i32, {tokens})};
  double total[2];
  model.units().refresh(scratch);
  for (int step = 0; step < steps; ++step) {
    model.begin_step(2);
    for (int micro = 0; micro < 2; ++micro) model.forward_backward(scope, batch, total);
    model.units().executor().run(model.update_tasks(), [&](const parallel::Task& task) {
      const bool last = step + 1 == steps;
      if (task.kind == parallel::Kind::update && !last) {
        const TraceRange range(*stream, concat("update ", kNames[task.units.begin]));
      } else if (task.kind == parallel::Kind::reduce || ((task.kind == parallel::Kind::gather || task.kind == parallel::Kind::cast) && !last)) {
        model.units().run(scratch, task);
      }
    });
  }
  return trace;
}
Log log_of_step(parallel::Weights weights, parallel::Gradients gradients, bool tied = false) {
  return trace_of_steps(1, weights, gradients, tied).log;
}

std::ptrdiff_t count(const Log& log, const std::string& what) { return std::count(log.begin(), log.end(), what); }

TEST(UnitsOrder, TheNextUnitIsGatheredBeforeAnyIsComputed) {
  const Log log = log_of_step(parallel::Weights::resharded, parallel::Gradients::sharded);
  const Log once = {
      "block 0 forward",  //
      "gather block 2",
      "block 1 forward",  //
      "gather head",
      "block 2 forward",  //
      "head",             //
      "block 2 backward",
      "reduce head",  // blocks 1 and 2 are still gathered
      "gather block 0",
      "block 1 backward",
      "reduce block 2",
  };
  Log expected = {"gather embedding", "gather block 0", "gather block 1"};
  expected.insert(expected.end(), once.begin(), once.end());
  expected.insert(expected.end(), {"gather embedding", "block 0 backward", "reduce block 1", "reduce block 0"});
  expected.insert(expected.end(), {"reduce embedding"});      // no attention follows it
  expected.insert(expected.end(), once.begin(), once.end());  // blocks 0 and 1 are still gathered
  expected.insert(expected.end(), {"block 0 backward", "reduce block 1", "reduce block 0", "reduce embedding"});
  EXPECT_EQ(log, expected);
}

// All ranks of a group must issue its exchanges in the same order. Otherwise they wait for each other for ever.
TEST(UnitsOrder, IsTheSameOnEveryRankOfTheMesh) {
  for (const parallel::Mesh& mesh : {parallel::Mesh({1, 4, 1, 1}), parallel::Mesh({1, 1, 4, 1}), parallel::Mesh({2, 2, 2, 2})}) {
    for (const parallel::Kept& kept : parallel::kept_order(4, 2)) {
      const Trace first = trace_of_steps(2, kept.weights, kept.gradients, false, mesh);
      EXPECT_EQ(count(first.log, "block 2 backward"), 2 * 2) << "a step and micro-batch each";
      for (int rank = 1; rank < mesh.ranks(); ++rank) {
        const Trace other = trace_of_steps(2, kept.weights, kept.gradients, false, mesh, rank);
        EXPECT_EQ(other.log, first.log) << "rank " << rank;
        EXPECT_EQ(other.ended, first.ended) << "rank " << rank;
      }
    }
  }
}

// Attention waits for the keys that other ranks hold, so they are gathered first. The next unit has the rest of the block's time.
TEST(UnitsOrder, ForwardGathersKeysBeforeTheNextUnit) {
  const Trace trace =
      trace_of_steps(1, parallel::Weights::resharded, parallel::Gradients::sharded, false, parallel::Mesh({1, 1, 4, 1}));
  const Log begin(trace.log.begin(), trace.log.begin() + 11);
  EXPECT_EQ(begin, (Log{"gather embedding", "gather block 0", "gather block 1",  //
                        "block 0 forward", "gather keys",                        //
                        "block 1 forward", "gather keys", "gather block 2",      //
                        "block 2 forward", "gather keys", "gather head"}));
  for (const std::size_t unit : {7, 10}) EXPECT_TRUE(trace.ended[unit].contains(unit - 1)) << trace.log[unit];
}

// The sum of a layer's key gradients begins when all of them are there, and they are used after the sum. Neither waits for the
// gradients of weights.
TEST(UnitsOrder, GradientsOfKeysAreSummedBesideTheReductionOfUnits) {
  const Trace trace =
      trace_of_steps(1, parallel::Weights::resharded, parallel::Gradients::sharded, false, parallel::Mesh({1, 1, 4, 1}));
  int sums = 0;
  for (std::size_t i = 0; i < trace.log.size(); ++i) {
    if (trace.log[i] == "sum gradients of keys") {
      ++sums;
      EXPECT_TRUE(trace.ended[i].contains(trace.last(i, {"gradients of keys"}))) << i;
      const std::size_t reduction = trace.last(i, {"reduce block 0", "reduce block 1", "reduce block 2", "reduce head"});
      EXPECT_GT(i, reduction);
      EXPECT_FALSE(trace.ended[i].contains(reduction)) << i << " waits for " << trace.log[reduction];
    } else if (trace.log[i] == "take summed gradients of keys") {
      EXPECT_TRUE(trace.ended[i].contains(trace.last(i, {"sum gradients of keys"}))) << i;
    }
  }
  EXPECT_EQ(sums, 2 * 3) << "a layer and micro-batch each";
}

TEST(UnitsOrder, WhatIsKeptIsGatheredAndReducedOnceAStep) {
  const Log log = log_of_step(parallel::Weights::kept, parallel::Gradients::whole);
  for (int unit = 0; unit < 5; ++unit) {
    EXPECT_EQ(count(log, concat("gather ", kNames[unit])), 1) << unit;
    EXPECT_EQ(count(log, concat("reduce ", kNames[unit])), 1) << unit;
  }
  // Whole gradients are reduced after the last backward.
  EXPECT_GT(std::find(log.begin(), log.end(), "reduce head") - log.begin(),
            std::find(log.begin(), log.end(), "block 0 backward") - log.begin());
}

// Embedding, norm and head form one unit. It stays until the embedding has added its part of the gradient.
TEST(UnitsOrder, ATiedHeadIsReducedWithTheEmbedding) {
  const Log log = log_of_step(parallel::Weights::resharded, parallel::Gradients::sharded, true);
  EXPECT_EQ(count(log, "gather embedding and head"), 1);
  EXPECT_EQ(count(log, "reduce embedding and head"), 2);
  EXPECT_EQ(log.back(), "reduce embedding and head");
}

// Two units at the edges share one slot. Only the gather of the second makes the first give the slot up.
TEST(UnitsOrder, AUnitIsGatheredAndWrittenWhenTheOneBeforeHasLeft) {
  Trace trace;
  LoggingDevice device(trace);
  const auto stream = device.make_stream();
  const parallel::Layout layout{
      .mesh = parallel::Mesh({1, 4, 1, 1}), .weights = parallel::Weights::resharded, .gradients = parallel::Gradients::sharded};
  const parallel::Groups groups = parallel::silent_groups(layout.mesh, 0);
  parallel::ParameterStore store;
  for (const char* name : {"first", "second"}) {
    store.begin_unit();
    store.add({.name = name, .shape = {64, 64}, .quant = {}});
  }
  store.materialise(device, {}, &groups, layout);
  parallel::StepShape shape;
  shape.head = 1;
  parallel::Units units(*stream, store, groups, layout, shape);
  Arena scratch(device, MemoryCategory::workspace, 0);
  units.begin_step();
  parallel::ScheduleBuilder list(shape, units.slots(), false);
  const parallel::Need first{0, parallel::Use::both}, second{1, parallel::Use::both};
  const auto run = [&](const char* name) {
    units.run(scratch, list.finish());
    const TraceRange range(*stream, name);
  };
  list.open(first);
  list.gather(second);
  run("first");
  list.close(first);
  list.open(second);
  run("second");
  list.close(second);
  list.reduce_pending(true);
  units.run(scratch, list.finish());
  EXPECT_EQ(trace.log, (Log{"gather embedding", "first", "gather head", "reduce embedding", "second", "reduce head"}));
  EXPECT_EQ(store.parameters()[0].value.data, store.parameters()[1].value.data) << "in turn";
}

TEST(UnitsOrder, AStepEndsAfterAllItsMicroBatches) {
  Trace trace;
  LoggingDevice device(trace);
  const auto stream = device.make_stream();
  const parallel::Layout layout{.mesh = parallel::Mesh({1, 4, 1, 1})};
  const parallel::Groups groups = parallel::silent_groups(layout.mesh, 0);
  Decoder model(config_of(false), recipes::make_recipe("fp8_delayed", {}));
  model.materialise(*stream, {}, 64, groups, layout);
  model.begin_step(1);
  EXPECT_THROW(model.update_tasks(), Error) << "the micro-batch is missing";
  EXPECT_THROW(model.begin_step(0), Error);
}

// Units share a slot if both are at the edges, if both are odd blocks, or if both are even blocks.
bool share_slot(int a, int b) { return a % 4 == 0 || b % 4 == 0 ? a % 4 == b % 4 : a % 2 == b % 2; }

TEST(UnitsOrder, StreamsWaitForWhatTheyReadAndOverwrite) {
  const std::set<std::string> uses[] = {{},
                                        {"block 0 forward", "block 0 backward"},
                                        {"block 1 forward", "block 1 backward"},
                                        {"block 2 forward", "block 2 backward"},
                                        {"head"}};
  for (const auto weights : {parallel::Weights::kept, parallel::Weights::resharded}) {
    for (const auto gradients : {parallel::Gradients::whole, parallel::Gradients::sharded}) {
      const Trace trace = trace_of_steps(2, weights, gradients);
      // Checks that entry i begins after the last earlier entry with one of these names has ended.
      const auto expect_after = [&](std::size_t i, const std::set<std::string>& names) {
        const std::size_t last = trace.last(i, names);
        if (last == trace.log.size()) return;
        EXPECT_TRUE(trace.ended[i].contains(last))
            << i << ": " << trace.log[i] << " need not wait for " << last << ": " << trace.log[last];
      };
      for (std::size_t i = 0; i < trace.log.size(); ++i) {
        const std::string& what = trace.log[i];
        if (what == "update embedding") {
          EXPECT_EQ(trace.ended[i].size(), i + 1) << "reads and overwrites what all exchanges have used";
        }
        for (int unit = 0; unit < 5; ++unit) {
          if (uses[unit].contains(what)) expect_after(i, {concat("gather ", kNames[unit])});
          if (what == concat("gather ", kNames[unit])) expect_after(i, {unit < 3 ? "update embedding" : "update block 2"});
          if (what == concat("reduce ", kNames[unit])) expect_after(i, uses[unit]);
          for (int other = 0; other < 5; ++other) {
            if (!share_slot(unit, other)) continue;
            if (weights == parallel::Weights::resharded && what == concat("gather ", kNames[unit])) expect_after(i, uses[other]);
            if (gradients == parallel::Gradients::sharded && uses[unit].contains(what) &&
                what.find("forward") == std::string::npos) {
              expect_after(i, {concat("reduce ", kNames[other])});
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::models
