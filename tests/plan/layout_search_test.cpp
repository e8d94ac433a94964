#include "octet/plan/layout_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace octet::plan {
namespace {

using nn::Checkpointing;
using parallel::Axis;
using parallel::Gradients;
using parallel::Weights;

// Weights and gradients take 100 bytes each. The activations of a sequence take 40 bytes, or a tenth of that with checkpointing.
// A tensor axis divides everything.
std::size_t memory_of(const LayoutChoice& c) {
  const double parts = c.mesh.size({Axis::shard, Axis::context});
  const double activations = 40.0 * static_cast<double>(c.micro_batch) / c.mesh.size(Axis::context);
  return static_cast<std::size_t>((100 / (c.weights == Weights::kept ? 1 : parts) +
                                   100 / (c.gradients == Gradients::whole ? 1 : parts) +
                                   activations * (c.checkpointing == Checkpointing::none ? 1 : 0.1)) /
                                  c.mesh.size(Axis::tensor));
}
Step step_of(const LayoutChoice& c) {
  Step step;
  step.compute_s = c.checkpointing == Checkpointing::none ? 10 : 13;
  step.memory_s = 1;
  step.exposed_s = (c.weights == Weights::kept ? 0 : 1) + (c.gradients == Gradients::whole ? 0 : 0.5) +
                   0.25 * (c.mesh.size(Axis::context) - 1) + 2 * (c.mesh.size(Axis::tensor) - 1) +
                   0.01 * c.mesh.size(Axis::replicate);
  step.seconds = step.compute_s + step.memory_s + step.exposed_s;
  step.tokens_per_s = 1000 / step.seconds;
  return step;
}
constexpr std::int64_t kGlobalBatch = 16;

// A search for a model with two heads.
Search search(std::size_t memory_bytes, std::int64_t seq_len = 16, std::int64_t global_batch = kGlobalBatch) {
  const auto divides = [seq_len, global_batch](const LayoutChoice& c) {
    const int context = c.mesh.size(Axis::context);
    return global_batch % (c.micro_batch * c.mesh.data_coordinates()) == 0 && 2 % c.mesh.size(Axis::tensor) == 0 &&
           (context == 1 || seq_len % (2 * context) == 0);
  };
  return {.cluster = {.gpu = {}, .gpus = 8, .nodes = 2},
          .seq_len = seq_len,
          .global_batch = global_batch,
          .memory_bytes = memory_bytes,
          .divides = divides,
          .memory_of = memory_of,
          .step_of = step_of};
}

TEST(LayoutSearch, FindsTheFastestFirstAndOnlyWhatFits) {
  for (const std::size_t memory : {1000, 230, 130, 60}) {
    const std::vector<Found> found = search_layouts(search(memory));
    ASSERT_FALSE(found.empty()) << memory;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const LayoutChoice& c = found[i].choice;
      EXPECT_LE(found[i].memory_bytes, memory);
      EXPECT_EQ(found[i].memory_bytes, memory_of(c));
      EXPECT_EQ(c.mesh.ranks(), 8);
      EXPECT_EQ(16 % (c.micro_batch * c.mesh.data_coordinates()), 0);
      EXPECT_LE(c.mesh.size({Axis::context, Axis::tensor}), 4) << "within a node";
      if (i == 0) continue;
      EXPECT_LE(found[i].step.tokens_per_s, found[i - 1].step.tokens_per_s);
    }
  }
  EXPECT_TRUE(search_layouts(search(10)).empty());
}

TEST(LayoutSearch, KeepsWhatMemoryAllows) {
  const LayoutChoice roomy = search_layouts(search(1000)).front().choice;
  EXPECT_EQ(roomy.weights, Weights::kept);
  EXPECT_EQ(roomy.gradients, Gradients::whole);
  EXPECT_EQ(roomy.checkpointing, Checkpointing::none);
  EXPECT_EQ(mesh_text(roomy.mesh), "shard 8");
  // With 160 bytes, whole gradients do not fit, but 100 + 12.5 + 40 bytes do without checkpointing.
  const LayoutChoice tight = search_layouts(search(160)).front().choice;
  EXPECT_EQ(tight.weights, Weights::kept);
  EXPECT_EQ(tight.gradients, Gradients::sharded);
  EXPECT_EQ(tight.checkpointing, Checkpointing::none);
}

// Weights take 200 bytes. Then whole gradients may fit beside gathered weights although sharded ones do not fit beside kept
// weights.
TEST(LayoutSearch, AlsoTriesWholeGradientsBesideGatheredWeights) {
  for (const bool staged : {false, true}) {
    Search asked = search(170);
    asked.memory_of = [](const LayoutChoice& c) {
      return memory_of(c) + (c.weights == Weights::kept ? 100 : 100 / c.mesh.size({Axis::shard, Axis::context}));
    };
    if (staged) {  // and with two stages alone, which divide nothing here
      asked.blocks = 2;
      asked.divides = [divides = asked.divides](const LayoutChoice& c) { return c.mesh.stages().count == 2 && divides(c); };
    }
    const std::vector<Found> found = search_layouts(asked);
    ASSERT_FALSE(found.empty());
    const LayoutChoice& best = found.front().choice;
    EXPECT_EQ(best.mesh.stages().count, staged ? 2 : 1);
    EXPECT_EQ(keeps_text(best), "weights resharded, gradients whole, checkpointing none");
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Found& f) {
      return keeps_text(f.choice) == "weights resharded, gradients sharded, checkpointing none";
    }));
    std::set<std::string> seen;
    for (const Found& f : found)
      EXPECT_TRUE(seen.insert(mesh_text(f.choice.mesh) + keeps_text(f.choice) + std::to_string(f.choice.micro_batch)).second);
    // In a step of one micro-batch whole gradients are sent as often as sharded ones.
    for (const Found& f : found) {
      if (f.choice.micro_batch * f.choice.mesh.data_coordinates() < kGlobalBatch) continue;
      EXPECT_EQ(f.choice.gradients, f.choice.mesh.size({Axis::shard, Axis::context}) > 1 ? Gradients::sharded : Gradients::whole);
    }
  }
}

// Gathering weights takes less time here than sending gradients after each of several micro-batches. 160 bytes hold kept weights
// with sharded gradients, or the other way round.
TEST(LayoutSearch, AlsoTriesWholeGradientsWhereKeptWeightsFit) {
  for (const int stages : {1, 2}) {
    Search asked = search(160);
    asked.blocks = stages;
    asked.divides = [=, divides = asked.divides](const LayoutChoice& c) { return c.mesh.stages().count == stages && divides(c); };
    asked.step_of = [](const LayoutChoice& c) {
      Step step = step_of(c);
      step.seconds += c.gradients == Gradients::whole ? 0 : 2;
      step.tokens_per_s = 1000 / step.seconds;
      return step;
    };
    const std::vector<Found> found = search_layouts(asked);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(keeps_text(found.front().choice), "weights resharded, gradients whole, checkpointing none") << stages;
  }
}

// If everything fits, nothing is recomputed, and each mesh appears once with each micro-batch.
TEST(LayoutSearch, TriesNothingInVain) {
  std::set<std::string> seen;
  for (const Found& f : search_layouts(search(1000))) {
    // With a single micro-batch, whole gradients gain nothing.
    const bool one = f.choice.micro_batch * f.choice.mesh.data_coordinates() == kGlobalBatch;
    const bool cut = f.choice.mesh.size({Axis::shard, Axis::context}) > 1;
    EXPECT_EQ(keeps_text(f.choice), concat("weights kept, gradients ", cut && one ? "sharded" : "whole", ", checkpointing none"));
    EXPECT_TRUE(seen.insert(mesh_text(f.choice.mesh) + "," + std::to_string(f.choice.micro_batch)).second);
  }
  // There are 4, 3 and 2 ways to get 8, 4 and 2 data coordinates, with micro-batches that divide 2, 4 and 8. A factor counts
  // twice if either context or tensor can take it.
  EXPECT_EQ(seen.size(), 4u * 2 + 2 * 3 * 3 + 2 * 2 * 4);
}

// What does not fit is not asked for again with a larger micro-batch, and the phases say how far they are.
TEST(LayoutSearch, TriesNoLargerMicroBatchOfWhatDoesNotFit) {
  Search asked = search(160);
  std::set<std::string> too_large, phases;
  asked.memory_of = [&](const LayoutChoice& c) {
    const std::string what = mesh_text(c.mesh) + ", " + keeps_text(c);
    EXPECT_FALSE(too_large.contains(what)) << what << ", micro-batch " << c.micro_batch;
    const std::size_t bytes = memory_of(c);
    if (bytes > 160) too_large.insert(what);
    return bytes;
  };
  std::int64_t last = 0;
  asked.progress = [&](const char* what, std::int64_t done, std::int64_t total) {
    last = phases.insert(what).second ? 1 : last + 1;
    EXPECT_EQ(done, last) << what;
    EXPECT_LE(done, total) << what;
  };
  EXPECT_FALSE(search_layouts(asked).empty());
  EXPECT_FALSE(too_large.empty());
  EXPECT_TRUE(phases.contains("meshes"));
}

// The sequence cannot be divided. With eight shards a layout takes 25 + 4 bytes. With half as many shards and half of each layer
// it takes 50 / 2 + 4 / 2 bytes.
TEST(LayoutSearch, CutsLayersWhereNothingElseFits) {
  EXPECT_EQ(search_layouts(search(1000)).front().choice.mesh.size(Axis::tensor), 1);
  EXPECT_EQ(search_layouts(search(29, 6)).front().choice.mesh.size(Axis::tensor), 1);
  const std::vector<Found> tight = search_layouts(search(28, 6));
  ASSERT_FALSE(tight.empty());
  for (const Found& f : tight) EXPECT_EQ(f.choice.mesh.size(Axis::tensor), 2) << mesh_text(f.choice.mesh);
}

TEST(LayoutSearch, LayoutsDivideTheStepAndTheSequence) {
  const auto found = [](std::int64_t seq_len, std::int64_t global_batch) {
    const std::vector<Found> all = search_layouts(search(1000, seq_len, global_batch));
    EXPECT_FALSE(all.empty());
    return all;
  };
  // There are too few sequences for 8 data coordinates.
  for (const Found& f : found(16, 4)) EXPECT_GT(f.choice.mesh.size({Axis::context, Axis::tensor}), 1);
  // Four tokens give two chunks for each of two ranks, and six tokens cannot be divided.
  for (const Found& f : found(4, 4)) EXPECT_LE(f.choice.mesh.size(Axis::context), 2);
  for (const Found& f : found(6, 4)) EXPECT_EQ(f.choice.mesh.size(Axis::context), 1);
  EXPECT_TRUE(search_layouts(search(1000, 16, 1)).empty());
}

// The expert axis may take any factor of the 6 experts that also divides 8, 4, 2 or 1 shards. Nothing else changes.
TEST(LayoutSearch, SharesExpertsOutByWhatDividesThemAndTheShards) {
  Search dense = search(1000), mixture = search(1000);
  mixture.experts = 6;
  mixture.step_of = [](const LayoutChoice& c) {
    Step step = step_of(c);
    step.exposed_s += c.mesh.expert() > 1 ? 0.125 : 0;
    step.seconds += c.mesh.expert() > 1 ? 0.125 : 0;
    step.tokens_per_s = 1000 / step.seconds;
    return step;
  };
  std::set<std::string> expected, found;
  for (const Found& f : search_layouts(dense)) {
    const std::string micro_batch = "," + std::to_string(f.choice.micro_batch);
    expected.insert(mesh_text(f.choice.mesh) + micro_batch);
    if (f.choice.mesh.size(Axis::shard) % 2 == 0) expected.insert(mesh_text(f.choice.mesh) + ", expert 2" + micro_batch);
  }
  const std::vector<Found> all = search_layouts(mixture);
  for (const Found& f : all)
    EXPECT_TRUE(found.insert(mesh_text(f.choice.mesh) + "," + std::to_string(f.choice.micro_batch)).second);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(
      why_first({all[0], *std::find_if(all.begin(), all.end(), [](const Found& f) { return f.choice.mesh.expert() > 1; })}),
      "shard 8 with weights kept, gradients whole, checkpointing none is 1.1% faster than shard 8, expert 2 with weights kept, "
      "gradients whole, checkpointing none, mainly because exchanges that are not hidden take 125.00 us less per token");
}

// A model of four blocks. Stages divide weights and gradients, and what a rank gathers, which shards do not divide. A sequence
// cannot be divided.
Search staged_search(std::size_t memory_bytes) {
  Search result = search(memory_bytes, 6);
  result.blocks = 4;
  result.divides = [divides = result.divides](const LayoutChoice& c) {
    const parallel::Stages stages = c.mesh.stages();
    return divides(c) && 4 % (stages.count * stages.chunks) == 0 &&
           (stages.chunks == 1 || kGlobalBatch / (c.micro_batch * c.mesh.data_coordinates()) % stages.count == 0);
  };
  result.memory_of = [](const LayoutChoice& c) {
    const double parts = c.mesh.size({Axis::shard, Axis::context}), stages = c.mesh.stages().count,
                 tensor = c.mesh.size(Axis::tensor);
    const double held = 100 / (c.weights == Weights::kept ? 1 : parts) + 100 / (c.gradients == Gradients::whole ? 1 : parts);
    const double activations = c.checkpointing == Checkpointing::none ? 40 : 4;
    return static_cast<std::size_t>((held / stages + activations + 20 / stages) / tensor);
  };
  result.step_of = [](const LayoutChoice& c) {
    Step step = step_of(c);
    const parallel::Stages stages = c.mesh.stages();
    const auto micro_batches = static_cast<double>(kGlobalBatch / (c.micro_batch * c.mesh.data_coordinates()));
    step.bubble_s = step.seconds * (stages.count - 1) / (stages.chunks * micro_batches);
    step.seconds += step.bubble_s;
    step.tokens_per_s = 1000 / step.seconds;
    return step;
  };
  return result;
}

// With one stage a layout takes at least (25 + 25 + 4 + 20) / 2 bytes, or 12.5 + 12.5 + 4 + 20.
TEST(LayoutSearch, FindsStagesWhereNothingElseFits) {
  EXPECT_EQ(search_layouts(staged_search(37)).front().choice.mesh.stages().count, 1);
  const std::vector<Found> tight = search_layouts(staged_search(36));
  ASSERT_FALSE(tight.empty());
  std::set<std::string> seen;
  for (const Found& f : tight) {
    EXPECT_GT(f.choice.mesh.stages().count, 1) << mesh_text(f.choice.mesh);
    EXPECT_LE(f.memory_bytes, 36u);
    EXPECT_EQ(f.choice.mesh.ranks(), 8);
    EXPECT_TRUE(staged_search(36).divides(f.choice));
    seen.insert(mesh_text(f.choice.mesh));
  }
  EXPECT_TRUE(seen.contains("pipeline 2 x shard 2 x tensor 2"));
  // Two chunks make the bubble half as long, and take nothing here.
  EXPECT_EQ(tight.front().choice.mesh.stages().chunks, 2) << mesh_text(tight.front().choice.mesh);
  EXPECT_NE(mesh_text(tight.front().choice.mesh).find(", 2 chunks a stage"), std::string::npos);
}

// If ten layouts without stages are faster than all pipelines, whose messages take time here, nobody asks for a pipeline's
// memory.
TEST(LayoutSearch, AsksForNoStagesThatCannotWin) {
  Search roomy = staged_search(1000);
  roomy.step_of = [step_of = roomy.step_of](const LayoutChoice& c) {
    Step step = step_of(c);
    step.tokens_per_s *= c.mesh.stages().count > 1 ? 0.9 : 1;
    return step;
  };
  int asked = 0;
  roomy.memory_of = [&, memory_of = roomy.memory_of](const LayoutChoice& c) {
    asked += c.mesh.stages().count > 1;
    return memory_of(c);
  };
  const std::vector<Found> found = search_layouts(roomy);
  ASSERT_GE(found.size(), kWanted);
  for (std::size_t i = 0; i < kWanted; ++i) EXPECT_EQ(found[i].choice.mesh.stages().count, 1) << i;
  EXPECT_EQ(asked, 0);
}

TEST(LayoutSearch, TakesOnlyStagesThatTheRunAccepts) {
  Search tied = staged_search(36);
  tied.divides = [divides = tied.divides](const LayoutChoice& c) { return c.mesh.stages().count == 1 && divides(c); };
  EXPECT_TRUE(search_layouts(tied).empty());
  Search shallow = staged_search(36);
  shallow.blocks = 1;
  EXPECT_TRUE(search_layouts(shallow).empty());
}

TEST(LayoutSearch, SaysWhyTheFirstIsFirst) {
  EXPECT_EQ(
      why_first(search_layouts(search(1000))),
      "shard 8 with weights kept, gradients whole, checkpointing none is 0.1% faster than replicate 2 x shard 4 with weights "
      "kept, gradients whole, checkpointing none, mainly because exchanges that are not hidden take 10.00 us less per "
      "token");
  std::vector<Found> one = search_layouts(search(1000));
  one.resize(1);
  EXPECT_EQ(why_first(one),
            "shard 8 with weights kept, gradients whole, checkpointing none is the only kind of layout that fits");
}

TEST(LayoutSearch, KnowsWaitsForOptimizerStates) {
  std::vector<Found> found = search_layouts(search(1000));
  const auto other = std::find_if(found.begin(), found.end(), [](const Found& f) { return f.choice.micro_batch > 1; });
  std::vector<Found> two = {found.front(), *other};
  two[1].choice.checkpointing = Checkpointing::full;
  two[1].step.copies_s = 5;
  two[1].step.seconds += 5;
  two[1].step.tokens_per_s = 1000 / two[1].step.seconds;
  const std::string why = why_first(two);
  EXPECT_NE(why.find("mainly because waits for optimizer states take 5000.00 us less per token"), std::string::npos) << why;
}

TEST(LayoutSearch, NamesMeshes) {
  EXPECT_EQ(mesh_text(parallel::Mesh()), "one GPU");
  EXPECT_EQ(mesh_text(parallel::Mesh({2, 4, 8, 1})), "replicate 2 x shard 4 x context 8");
  EXPECT_EQ(mesh_text(parallel::Mesh({1, 4, 1, 2})), "shard 4 x tensor 2");
}

}  // namespace
}  // namespace octet::plan
