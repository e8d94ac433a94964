// Ranks that must hold the same state keep it equal to the bit, and a flipped bit is found and blamed on its rank.
#include "octet/train/replica_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/meshes.h"

namespace octet::testing {
namespace {

using train::Disagreement;

const std::vector<Layout> kReplicated = {
    {.mesh = Mesh({2, 1, 1, 1})},
    {.mesh = Mesh({3, 1, 1, 1}), .reduce = DType::bf16},
    {.mesh = Mesh({2, 2, 1, 1}), .gradients = Gradients::whole},
    {.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({2, 1, 2, 1})},
    {.mesh = Mesh({1, 1, 1, 4})},
    {.mesh = Mesh({2, 1, 1, 4})},
    {.mesh = Mesh({2, 2, 1, 2}), .weights = Weights::kept, .gradients = Gradients::sharded}};

class ReplicaCheck : public MeshTest {
 protected:
  static Steps steps_of(const Layout& layout, int count) {
    return {.count = count, .micro_batches = 2 * layout.mesh.data_coordinates()};
  }
  // Takes steps without a fault. All ranks must agree after each of them.
  static void expect_no_alarm(const train::EngineOptions& options, const Layout& layout) {
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      for (int step = 0; step < 3; ++step) {
        take(engine, steps_of(layout, 1));
        const auto found = engine.compare_replicas();
        EXPECT_FALSE(found) << "rank " << engine.options().rank << ", step " << step << ": " << found->tensor;
      }
      engine.settle();
      EXPECT_FALSE(engine.compare_replicas()) << "as before a save";
    });
  }
};

// Returns a tensor of the state of a parameter, or a tensor without memory.
using Choose = std::function<Tensor(const parallel::Parameter&)>;
Tensor weight_of(const parallel::Parameter& p) { return p.spec.frozen ? Tensor{} : p.primary(); }

struct Flip {
  int rank = 0;
  Choose choose = weight_of;
  int bit = 12;        // of the element, from the lowest on; modulo its size
  int steps = 0;       // that follow before the comparison
  bool uncut = false;  // in a norm, which the tensor axis does not cut
};

// Flips a bit of the middle element of the largest tensor of this kind. Returns the parameter's name.
std::string flip_bit(train::Engine& engine, const Flip& flip) {
  const parallel::Parameter* largest = nullptr;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    const Tensor x = p.held ? flip.choose(p) : Tensor{};
    if (!x || x.elements() == 0 || (flip.uncut && p.spec.shape.rank() > 1)) continue;
    if (!largest || x.elements() > flip.choose(*largest).elements()) largest = &p;
  }
  require(largest != nullptr, "no tensor of this kind");
  const Tensor x = flip.choose(*largest);
  const std::size_t size = size_of(x.dtype), at = static_cast<std::size_t>(x.elements() / 2) * size;
  const auto bit = static_cast<std::size_t>(flip.bit) % (8 * size);
  x.as_bytes()[at + bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  return largest->spec.name;
}

// Flips a bit after two steps and expects that the ranks of its group on `axis` find it, and no others.
void expect_found(const train::EngineOptions& options, const Layout& layout, const Flip& flip, Axis axis = Axis::replicate,
                  const std::string& suffix = "") {
  std::mutex mutex;
  std::string name;
  std::map<int, std::optional<Disagreement>> found;
  const Steps steps{.count = 2, .micro_batches = 2 * layout.mesh.data_coordinates()};
  on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
    take(engine, steps);
    const int rank = engine.options().rank;
    if (rank == flip.rank) {
      const std::string flipped = flip_bit(engine, flip);
      const std::lock_guard lock(mutex);
      name = flipped + suffix;
    }
    if (flip.steps > 0) take(engine, {.count = flip.steps, .micro_batches = steps.micro_batches});
    const auto mine = engine.compare_replicas();
    const std::lock_guard lock(mutex);
    found[rank] = mine;
  });
  const std::vector<int> group = layout.mesh.group({axis}, flip.rank);
  for (const auto& [rank, disagreement] : found) {
    SCOPED_TRACE(concat("rank ", rank, ", ", name));
    const bool takes_part = std::count(group.begin(), group.end(), rank) > 0;
    ASSERT_EQ(disagreement.has_value(), takes_part);
    if (!takes_part) continue;
    EXPECT_EQ(disagreement->axis, axis);
    EXPECT_EQ(disagreement->ranks, group);
    EXPECT_EQ(disagreement->wrong, group.size() > 2 ? std::vector{flip.rank} : std::vector<int>{});
    if (flip.steps == 0) {
      EXPECT_EQ(disagreement->tensor, name);
    }
  }
}

class ReplicaCheckRecipes : public ReplicaCheck, public ::testing::WithParamInterface<std::string> {
 protected:
  // Attention in FP8 is not shared by ranks of a context axis.
  static std::vector<Layout> layouts() {
    std::vector<Layout> result = kReplicated;
    if (recipe_named(GetParam()).attention == AttentionPrecision::bf16) return result;
    std::erase_if(result, [](const Layout& layout) { return layout.mesh.size(Axis::context) > 1; });
    return result;
  }
};

TEST_P(ReplicaCheckRecipes, RanksAgreeToTheBit) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text(layout));
    expect_no_alarm(tensor_options(GetParam()), layout);
  }
}

TEST_P(ReplicaCheckRecipes, FindsAFlippedBit) {
  for (const Layout& layout : layouts()) {
    if (layout.mesh.size(Axis::replicate) == 1) continue;
    SCOPED_TRACE(text(layout));
    expect_found(tensor_options(GetParam()), layout, {.rank = 1, .bit = 0});
    expect_found(tensor_options(GetParam()), layout, {.rank = layout.mesh.ranks() - 1, .steps = 1});
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplicaCheckRecipes, ::testing::ValuesIn(all_precisions()),
                         [](const auto& info) { return info.param; });

const Layout kThree{.mesh = Mesh({3, 1, 1, 1})};

TEST_F(ReplicaCheck, CoversAllStateOfTheOptimizer) {
  for (const DType moments : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    for (const bool master : {true, false}) {
      train::EngineOptions options = context_options("fp8_delayed");
      options.storage.moments = moments;
      options.storage.master_weights = master;
      for (const std::size_t slot : {0, 8192}) {
        options.storage.offload_slot = slot;
        SCOPED_TRACE(concat(name_of(moments), master ? ", masters" : "", slot > 0 ? ", offload" : ""));
        for (const Layout& layout : {kThree, kReplicated[3], kReplicated[4]}) expect_no_alarm(options, layout);
        expect_found(options, kThree, {.rank = 2, .bit = 3});
        expect_found(options, kThree, {.rank = 0, .choose = [](const parallel::Parameter& p) { return p.moment1; }},
                     Axis::replicate, ".moment1");
        expect_found(options, kThree, {.rank = 1, .choose = [](const parallel::Parameter& p) { return p.moment2; }},
                     Axis::replicate, ".moment2");
        if (moments != DType::f8_e4m3) continue;
        expect_found(options, kThree, {.rank = 1, .choose = [](const parallel::Parameter& p) { return p.moment2_scale; }},
                     Axis::replicate, ".moment2_scale");
      }
    }
  }
}

TEST_F(ReplicaCheck, CoversExpertsAndStages) {
  const Layout experts[] = {{.mesh = Mesh({2, 2, 1, 1}, 2), .gradients = Gradients::sharded},
                            {.mesh = Mesh({3, 2, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
                            {.mesh = Mesh({2, 1, 1, 2})}};
  for (const std::string recipe : {"fp8_delayed", "mxfp8"}) {
    train::EngineOptions options = mixture_options(recipe);
    options.model.router_bias_rate = 0.01;
    for (const Layout& layout : experts) {
      SCOPED_TRACE(concat(recipe, ", ", text(layout)));
      expect_no_alarm(options, layout);
      expect_found(options, layout, {.rank = 3, .steps = 1});
    }
    train::EngineOptions deep = context_options(recipe);
    deep.model.layers = 4;
    const Layout stages{.mesh = Mesh({3, 1, 1, 1}, 1, {.count = 2})};
    expect_no_alarm(deep, stages);
    expect_found(deep, stages, {.rank = 4, .bit = 1});
  }
}

// The weights beneath adapters never change, so nothing else would ever overwrite a flipped bit.
TEST_F(ReplicaCheck, CoversFrozenWeightsAndAdapters) {
  const auto codes = [](const parallel::Parameter& p) { return p.spec.frozen ? p.rowwise_shard : Tensor{}; };
  const auto values = [](const parallel::Parameter& p) { return p.spec.frozen ? p.primary() : Tensor{}; };
  const Layout sharded{.mesh = Mesh({3, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  for (const Layout& layout : {kThree, sharded}) {
    SCOPED_TRACE(text(layout));
    const train::EngineOptions options = adapted(context_options("fp8_delayed"));
    expect_no_alarm(options, layout);
    expect_found(options, layout, {.rank = 1});
    expect_found(options, layout, {.rank = 2, .choose = codes, .steps = 1});
    expect_found(options, layout, {.rank = 2, .choose = codes}, Axis::replicate, ".codes");
    expect_found(adapted(context_options("bf16")), layout, {.rank = 0, .choose = values});
  }
}

TEST_F(ReplicaCheck, ComparesWhatTheTensorAxisDoesNotCut) {
  const Layout four{.mesh = Mesh({1, 1, 1, 4})};
  expect_found(tensor_options("fp8_block"), four, {.rank = 2, .bit = 5, .uncut = true}, Axis::tensor);
  expect_found(tensor_options("bf16"), {.mesh = Mesh({1, 2, 1, 2})}, {.rank = 1, .uncut = true}, Axis::tensor);
}

// The norms of both replicas differ, which blames nobody, and three ranks of the tensor axis outvote the fourth.
TEST_F(ReplicaCheck, AMajorityOnEitherAxisBlames) {
  on_engines(tensor_options("fp8_delayed"), {.mesh = Mesh({2, 1, 1, 4})}, [&](train::Engine& engine, const parallel::Groups&) {
    const int rank = engine.options().rank;
    if (rank == 5) flip_bit(engine, {.uncut = true});
    const auto found = engine.compare_replicas();
    ASSERT_EQ(found.has_value(), rank == 1 || rank >= 4);
    if (!found) return;
    EXPECT_EQ(found->axis, rank == 1 ? Axis::replicate : Axis::tensor);
    EXPECT_EQ(found->wrong, rank == 1 ? std::vector<int>{} : std::vector{5});
  });
}

// Scales of FP8 are state, too.
TEST_F(ReplicaCheck, CoversDelayedScales) {
  on_engines(context_options("fp8_delayed"), kThree, [&](train::Engine& engine, const parallel::Groups&) {
    take(engine, {.micro_batches = 3});
    const auto scale = engine.model().scales().tensors().at(4);
    if (engine.options().rank == 1) scale.tensor.as_bytes()[1] ^= 1;
    const auto found = engine.compare_replicas();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tensor, scale.name);
    EXPECT_EQ(found->wrong, std::vector{1});
  });
}

// Two of three ranks that are wrong in different ways outvote nobody, and two of five do not either.
TEST_F(ReplicaCheck, OnlyAMajorityBlames) {
  for (const int ranks : {3, 4, 5}) {
    on_engines(context_options("bf16"), {.mesh = Mesh({ranks, 1, 1, 1})}, [&](train::Engine& engine, const parallel::Groups&) {
      const int rank = engine.options().rank;
      if (rank < 2) flip_bit(engine, {.bit = rank});
      const auto found = engine.compare_replicas();
      ASSERT_TRUE(found);
      EXPECT_EQ(found->wrong, ranks == 5 ? (std::vector{0, 1}) : std::vector<int>{});
    });
  }
}

}  // namespace
}  // namespace octet::testing
