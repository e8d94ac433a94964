#include "octet/plan/pipeline_time.h"

#include <gtest/gtest.h>

#include <array>

#include "octet/base/require.h"

namespace octet::plan {
namespace {

using parallel::Stages;
using parallel::Visit;

// With equal stages the bubble is (P - 1) / (V M) of the work (Narayanan et al., 2021, section 2.2).
TEST(PipelineTime, HasTheBubbleOfThePaper) {
  for (const Stages stages : {Stages{.count = 2}, {.count = 4}, {.count = 8}, {.count = 4, .chunks = 2}, {.count = 8, .chunks = 4}}) {
    for (const int micro_batches : {8, 16, 64}) {
      SCOPED_TRACE(concat(stages.count, " stages of ", stages.chunks, " chunks, ", micro_batches, " micro-batches"));
      const PipelineTime time = pipeline_time(
          stages, micro_batches, [](int, const Visit& visit) { return visit.backward ? 2.0 : 1.0; },
          std::vector<double>(static_cast<std::size_t>(stages.count)));
      const double work = 3.0 * micro_batches * stages.chunks;
      for (int stage = 0; stage < stages.count; ++stage) {
        EXPECT_DOUBLE_EQ(time.busy[static_cast<std::size_t>(stage)], work);
        EXPECT_NEAR(time.idle(stage) / work, (stages.count - 1.0) / (stages.chunks * micro_batches), 1e-12);
      }
    }
  }
}

TEST(PipelineTime, WaitsForTheSlowestStageAndForMessages) {
  const auto slow = [](int stage, const Visit&) { return stage == 1 ? 2.0 : 1.0; };
  // Stage 1 of 2: F0 B0 F1 B1 in 8 s, behind the first forward pass and before the last backward pass of stage 0.
  EXPECT_DOUBLE_EQ(pipeline_time({.count = 2}, 2, slow, {0, 0}).seconds, 10);
  EXPECT_DOUBLE_EQ(pipeline_time({.count = 2}, 2, slow, {0.25, 0}).seconds, 10.5);
}

TEST(PipelineTime, ChoosesTheLinkOfEachMessage) {
  const auto equal = [](int, const Visit&) { return 1.0; };
  // One micro-batch: three passes forward and three back, and each link is crossed twice. Nothing goes from the last stage to the
  // first.
  EXPECT_DOUBLE_EQ(pipeline_time({.count = 3}, 1, equal, {0.25, 2, 100}).seconds, 6 + 2 * 0.25 + 2 * 2);
  // With two chunks it goes there once forward and once back, and crosses the other link four times.
  EXPECT_DOUBLE_EQ(pipeline_time({.count = 2, .chunks = 2}, 1, equal, {0.25, 100}).seconds, 8 + 4 * 0.25 + 2 * 100);
}

TEST(PipelineTime, SaysWhenEachPassRuns) {
  const PipelineTime time =
      pipeline_time({.count = 2}, 2, [](int, const Visit& visit) { return visit.backward ? 2.0 : 1.0; }, {0.5, 0});
  ASSERT_EQ(time.passes.size(), 2u);
  // Stage 0 runs ahead by one pass, then waits for gradients; stage 1 takes turns.
  const std::vector<std::vector<std::array<double, 4>>> expected = {
      {{0, 0, 0, 1}, {0, 1, 1, 2}, {1, 0, 5, 7}, {1, 1, 8, 10}},
      {{0, 0, 1.5, 2.5}, {1, 0, 2.5, 4.5}, {0, 1, 4.5, 5.5}, {1, 1, 5.5, 7.5}}};
  for (std::size_t stage = 0; stage < 2; ++stage) {
    ASSERT_EQ(time.passes[stage].size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      const TimedPass& pass = time.passes[stage][i];
      const std::array<double, 4> seen = {pass.visit.backward ? 1.0 : 0.0, static_cast<double>(pass.visit.micro_batch),
                                          pass.begin, pass.end};
      EXPECT_EQ(seen, expected[stage][i]) << "stage " << stage << ", pass " << i;
    }
  }
}

TEST(PipelineTime, ReadsPassesFromTasks) {
  using parallel::Kind;
  using parallel::TimedTask;
  const auto task = [](Kind kind, int index, double begin, double end) {
    return TimedTask{{.kind = kind, .index = index}, begin, end};
  };
  const PassTimes times = pass_times({task(Kind::load, 0, 1, 1), task(Kind::forward, 0, 1, 3), task(Kind::give, 0, 3, 4),
                                      task(Kind::take, 1, 5, 6), task(Kind::backward, 0, 6, 10), task(Kind::embed_backward, 0, 10, 11)},
                                     1);
  EXPECT_DOUBLE_EQ(times.forward[0], 3);
  EXPECT_DOUBLE_EQ(times.backward[0], 7);  // with the second before it, in which the stream waited
}

}  // namespace
}  // namespace octet::plan
