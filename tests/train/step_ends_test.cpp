// What the optimizer does while exchanges run at the beginning and the end of a step. The device only logs the work.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/tiny_model.h"
#include "support/trace.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

// The names of the units, by number.
constexpr const char* kNames[] = {"embedding", "block 0", "block 1", "block 2", "block 3", "head"};
constexpr int kUnits = 6, kFirst = 3;

// Traces two steps of one micro-batch each.
Trace trace_of_steps(const Layout& layout, const std::string& recipe) {
  Trace trace;
  LoggingDevice device(trace);
  const parallel::Groups groups = parallel::silent_groups(layout.mesh, 0);
  train::EngineOptions options = tiny_options(recipe);
  options.model.dim = 64;
  options.model.head_dim = 16;
  options.model.layers = kUnits - 2;
  options.layout = layout;
  train::Engine engine(options, device, groups);
  engine.refresh();
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(options.micro_batch_size * options.seq_len));
  for (std::uint32_t step = 1; step <= 2; ++step) {
    engine.begin_step();
    engine.forward_backward({.tokens = ids, .targets = ids}, nullptr);
    engine.apply(0.0, step);
  }
  return trace;
}

const std::string kSquaresOfOthers = "squares of block 2 to head", kSquaresOfFirst = "squares of embedding to block 1",
                  kUpdateFirst = "update embedding to block 1", kUpdateOthers = "update block 2 to head";

class StepEnds : public ::testing::Test {
 protected:
  // Returns whether the last range `what` is certain to begin after the last range `other` has ended, however slow the streams
  // are.
  bool waits(const std::string& what, const std::string& other) const { return trace.ended[last(what)].contains(last(other)); }
  std::size_t last(const std::string& what) const {
    const std::size_t place = trace.last(trace.log.size(), {what});
    EXPECT_LT(place, trace.log.size()) << what << " is not there";
    return std::min(place, trace.log.size() - 1);
  }
  std::ptrdiff_t count(const std::string& what) const { return std::count(trace.log.begin(), trace.log.end(), what); }

  Trace trace;
};

TEST_F(StepEnds, NeitherTheNormNorTheOptimizerWaitsForTheFirstUnits) {
  for (const std::string recipe : {"fp8_delayed", "fp8_rowwise", "bf16"}) {
    for (const auto weights : {Weights::kept, Weights::resharded}) {
      for (const auto gradients : {Gradients::whole, Gradients::sharded}) {
        trace = trace_of_steps({.mesh = Mesh({1, 4, 1, 1}), .weights = weights, .gradients = gradients}, recipe);
        for (int unit = 0; unit < kUnits; ++unit) {
          const std::string reduce = concat("reduce ", kNames[unit]), gather = concat("gather ", kNames[unit]);
          const bool first = unit < kFirst;
          EXPECT_TRUE(waits(first ? kSquaresOfFirst : kSquaresOfOthers, reduce)) << unit;
          if (!first) continue;
          EXPECT_FALSE(waits(kSquaresOfOthers, reduce)) << unit;
          EXPECT_TRUE(waits(gather, kUpdateFirst)) << unit;
          EXPECT_FALSE(waits(gather, kUpdateOthers)) << unit;
          EXPECT_LT(last(gather), last(kUpdateOthers)) << unit << ": issued before it";
        }
        EXPECT_EQ(count("gather embedding"), 3) << "before each of two steps, and for the next";
      }
    }
  }
}

// Every replica holds all weights, so nothing is gathered.
TEST_F(StepEnds, ReplicasReduceBesideTheNorm) {
  trace = trace_of_steps({.mesh = Mesh({4, 1, 1, 1})}, "fp8_delayed");
  EXPECT_TRUE(waits(kSquaresOfFirst, "reduce embedding"));
  EXPECT_FALSE(waits(kSquaresOfOthers, "reduce embedding"));
  EXPECT_TRUE(waits(kSquaresOfOthers, "reduce block 2"));
  EXPECT_EQ(count("gather embedding"), 0);
}

TEST_F(StepEnds, OneRankTakesAllUnitsAtOnce) {
  trace = trace_of_steps({.mesh = Mesh({1, 1, 1, 1})}, "fp8_delayed");
  EXPECT_EQ(count("squares of embedding to head"), 2);
  EXPECT_EQ(count("update embedding to head"), 2);
}

}  // namespace
}  // namespace octet::testing
