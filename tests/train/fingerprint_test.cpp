// Ranks with other data coordinates compute the same bits from the same micro-batch, and a wrong one shows in the layer where it
// begins.
#include "octet/models/decoder/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "train/meshes.h"

namespace octet::testing {
namespace {

using Sums = std::vector<std::uint64_t>;

class Fingerprint : public MeshTest {
 protected:
  static train::EngineOptions with_fingerprints(train::EngineOptions options) {
    options.fingerprints = true;
    return options;
  }
  static Steps one_step(const Layout& layout) {
    return {.micro_batches = (layout.accumulates ? 2 : 1) * layout.mesh.data_coordinates()};
  }
  // The same on all ranks.
  static Sums fingerprint_of(train::Engine& engine) {
    const Tokens tokens = micro_batch(engine.options(), {.micro_batches = 1}, 1, 0);
    Sums sums = engine.fingerprint(tokens.batch(5));
    engine.mean_over_ranks(0);  // a stage's engine must live until the others have received its last message
    return sums;
  }
  // Returns the sums of each rank. `before` is called after a step.
  static std::map<int, Sums> fingerprints(const train::EngineOptions& options, const Layout& layout,
                                          const std::function<void(train::Engine&)>& before = {}) {
    std::mutex mutex;
    std::map<int, Sums> all;
    on_engines(with_fingerprints(options), layout, [&](train::Engine& engine, const parallel::Groups&) {
      take(engine, one_step(layout));
      if (before) before(engine);
      const Sums sums = fingerprint_of(engine);
      const std::lock_guard lock(mutex);
      all[engine.options().rank] = sums;
    });
    return all;
  }
  static void expect_equal_along_data(const train::EngineOptions& options, const Layout& layout) {
    const std::map<int, Sums> all = fingerprints(options, layout);
    for (const auto& [rank, sums] : all) {
      const int first = layout.mesh.group({Axis::replicate, Axis::shard}, rank).front();
      EXPECT_EQ(sums, all.at(first)) << "ranks " << first << " and " << rank;
      EXPECT_GT(std::set(sums.begin(), sums.end()).size(), sums.size() / 2) << "sums of nothing";
    }
  }
};

class FingerprintRecipes : public Fingerprint, public ::testing::WithParamInterface<std::string> {};

const std::vector<Layout> kLayouts = {
    {.mesh = Mesh({3, 1, 1, 1}), .reduce = DType::bf16},
    {.mesh = Mesh({2, 2, 1, 1}), .gradients = Gradients::whole},
    {.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 2, 1, 1}), .gradients = Gradients::sharded, .accumulates = false},
    {.mesh = Mesh({2, 1, 2, 1})},
    {.mesh = Mesh({2, 1, 1, 2})}};

TEST_P(FingerprintRecipes, EqualDataGiveEqualBits) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(text(layout));
    expect_equal_along_data(tensor_options(GetParam()), layout);
  }
}

// Scales, amax histories, counts and weights are those of a run that is never checked.
TEST_P(FingerprintRecipes, LeaveNoTrace) {
  for (const Layout& layout : {kLayouts[0], kLayouts[2], kLayouts[3]}) {
    SCOPED_TRACE(text(layout));
    const auto run = [&](bool checks) {
      std::mutex mutex;
      RunState state;
      on_engines(with_fingerprints(tensor_options(GetParam())), layout, [&](train::Engine& engine, const parallel::Groups&) {
        Taken taken;
        for (int step = 0; step < 4; ++step) {
          taken = take(engine, one_step(layout));
          if (!checks) continue;
          fingerprint_of(engine);
          EXPECT_TRUE(engine.requests().stop) << "the answer of the step is still there";
        }
        engine.settle();
        const std::lock_guard lock(mutex);
        state.add(engine, taken);
      });
      return state;
    };
    const RunState checked = run(true), unchecked = run(false);
    EXPECT_EQ(checked.weights, unchecked.weights);
    EXPECT_EQ(checked.scales, unchecked.scales);
    EXPECT_EQ(checked.taken, unchecked.taken);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FingerprintRecipes, ::testing::ValuesIn(all_recipes()),
                         [](const auto& info) { return info.param; });

TEST_F(Fingerprint, CoversStagesMixturesAndAdapters) {
  train::EngineOptions deep = context_options("fp8_delayed");
  deep.model.layers = 4;
  expect_equal_along_data(deep, {.mesh = Mesh({2, 1, 1, 1}, 1, {.count = 2})});
  expect_equal_along_data(deep, {.mesh = Mesh({2, 1, 1, 1}, 1, {.count = 2, .chunks = 2})});
  expect_equal_along_data(mixture_options("mxfp8"), kLayouts[2]);
  expect_equal_along_data(adapted(context_options("fp8_block")), kLayouts[1]);
  for (const nn::Checkpointing mode : {nn::Checkpointing::selective, nn::Checkpointing::full}) {
    train::EngineOptions options = context_options("fp8_delayed");
    options.checkpointing = mode;
    expect_equal_along_data(options, kLayouts[0]);
  }
}

// Changes the sign of an element of a copy of the weights of a linear, which every step makes anew from the state.
void flip_sign(const Tensor& x) {
  const std::size_t size = size_of(x.dtype);
  x.as_bytes()[static_cast<std::size_t>(x.elements() / 2) * size + size - 1] ^= 0x80;
}

// The name of the first sum that is another one on this rank than on rank 0, which all other ranks share.
std::string first_difference(const train::EngineOptions& options, const Layout& layout, int wrong,
                             const std::function<Tensor(const parallel::Parameter&)>& choose, const std::string& parameter) {
  std::vector<std::string> names;
  std::mutex mutex;
  std::map<int, Sums> all;
  train::EngineOptions checked = options;
  checked.fingerprints = true;
  on_engines(checked, layout, [&](train::Engine& engine, const parallel::Groups&) {
    const int rank = engine.options().rank;
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      if (rank == wrong && p.spec.name == parameter) flip_sign(choose(p));
    }
    const Tokens tokens = micro_batch(options, {.micro_batches = 1}, 1, 0);
    const Sums sums = engine.fingerprint(tokens.batch());
    EXPECT_EQ(engine.fingerprint(tokens.batch()), sums) << "rank " << rank;
    const std::lock_guard lock(mutex);
    all[rank] = sums;
    if (rank == 0) names = engine.names_in_fingerprint();
  });
  for (const auto& [rank, sums] : all) {
    if (rank != wrong) {
      EXPECT_EQ(sums, all.at(0)) << "rank " << rank;
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (all.at(wrong)[i] != all.at(0)[i]) return names[i];
  }
  return "none";
}

TEST_F(Fingerprint, NamesWhereAWrongBitBegins) {
  const Layout three{.mesh = Mesh({3, 1, 1, 1})};
  const auto value = [](const parallel::Parameter& p) { return p.value; };
  const auto codes = [](const parallel::Parameter& p) { return p.codes.rowwise; };
  const auto transposed = [](const parallel::Parameter& p) { return p.codes.columnwise; };
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  EXPECT_EQ(first_difference(context_options("bf16"), three, 1, value, down), "the output of layer 1");
  EXPECT_EQ(first_difference(context_options("fp8_delayed"), three, 2, codes, down), "the output of layer 1");
  EXPECT_EQ(first_difference(context_options("bf16"), three, 1, value, "model.norm.weight"), "the gradient of model.norm.weight");
  // Only dgrad reads the transposed codes, so the gradient of the products before it is the first that is wrong.
  const std::string gradient = first_difference(context_options("fp8_block"), three, 2, transposed, down);
  EXPECT_TRUE(gradient.starts_with("the gradient of model.layers.1.")) << gradient;
}

}  // namespace
}  // namespace octet::testing
