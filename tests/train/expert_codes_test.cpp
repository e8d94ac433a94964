// Rows of tokens travel to experts on other ranks as codes if each expert has one scale. A watched step sends values instead, so
// a watch that looks at nothing is the oracle.
#include <gtest/gtest.h>

#include <mutex>

#include "octet/train/step_count.h"
#include "support/blind_routers.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class Blind final : public nn::Watch {
 public:
  void operand(const nn::Scope&, std::string_view, Role, const Tensor&, const Quantized&) override {}
  void product(const nn::Scope&, std::string_view, std::string_view, const kernels::Gemm&) override {}
  void attention(const nn::Scope&, std::string_view, const Tensor&) override {}
};

constexpr const char* kRecipes[] = {"fp8_delayed", "fp8_current"};
constexpr nn::Checkpointing kCheckpointings[] = {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full};

class ExpertCodes : public MeshTest {
 protected:
  struct Result {
    RunState state;
    double bytes = 0;  // that rank 0 sent to ranks with other experts, in all steps
  };
  static Result run(const train::EngineOptions& options, const Layout& layout, const Beside& beside = {}) {
    Result result;
    const Steps steps{.count = 2, .micro_batches = 2 * layout.mesh.data_coordinates()};
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups& groups) {
      if (beside.before) beside.before(engine);
      const double before = groups.expert->traffic().bytes;
      const Taken taken = take(engine, steps);
      const double sent = groups.expert->traffic().bytes - before;
      engine.settle();
      const std::lock_guard lock(mutex);
      if (engine.options().rank == 0) result.bytes = sent;
      result.state.add(engine, taken);
    });
    return result;
  }
  // Returns the bytes that codes and values take.
  static std::pair<double, double> expect_bits_of_values(const train::EngineOptions& options, const Layout& layout,
                                                         const Beside& beside = {}) {
    SCOPED_TRACE(text(layout));
    Blind blind;
    train::EngineOptions watched = options;
    watched.watch = &blind;
    const Result codes = run(options, layout, beside), values = run(watched, layout, beside);
    expect_same_bits(codes.state, values.state);
    return {codes.bytes, values.bytes};
  }
};

TEST_F(ExpertCodes, GiveTheBitsOfValuesOnEveryMesh) {
  for (const Layout& layout : kMixtures) {
    if (layout.mesh.expert() == 1) continue;
    for (const nn::Checkpointing mode : kCheckpointings) {
      for (const char* recipe : kRecipes) {
        SCOPED_TRACE(recipe);
        train::EngineOptions options = mixture_options(recipe);
        options.checkpointing = mode;
        const auto [codes, values] = expect_bits_of_values(options, layout);
        EXPECT_LT(codes, 0.85 * values);
      }
    }
  }
}

// All tokens go to one expert. Its rank gets them in two rounds, and the others get none. With current scaling the rows of each
// round have a scale of their own, so values are sent.
TEST_F(ExpertCodes, GiveTheBitsOfValuesInSeveralRounds) {
  for (const char* recipe : kRecipes) {
    for (const nn::Checkpointing mode : kCheckpointings) {
      SCOPED_TRACE(recipe);
      train::EngineOptions options = mixture_options(recipe);
      options.checkpointing = mode;
      options.model.experts_per_token = 1;
      expect_bits_of_values(options, {.mesh = Mesh({1, 4, 1, 1}, 4)}, {.before = blind_routers});
    }
  }
}

// Where wgrad reads what values alone give, or an adapter reads values, values are sent.
TEST_F(ExpertCodes, AreSentWithOneScaleForATensorAlone) {
  for (const std::string& recipe : recipes::recipe_names()) {
    if (recipe == "fp8_delayed" || recipe == "fp8_current" || recipe == "fp32") continue;
    const auto [codes, values] = expect_bits_of_values(mixture_options(recipe), {.mesh = Mesh({1, 2, 1, 1}, 2)});
    EXPECT_EQ(codes, values) << recipe;
  }
}

TEST(ExpertCodesSkip, TheExpertsOfALayerHaveOnePrecision) {
  for (const char* skipped : {"model.layers.0.*.experts.0.*", "model.layers.0.*.experts.3.*"}) {
    train::EngineOptions options = mixture_options("fp8_current");
    options.recipe = recipe_named("fp8_current", {.skip = {skipped}});
    EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { make_engine(options); }),
                         "but the experts of a layer have one precision; give \"model.layers.0.block_sparse_moe.experts.*."));
  }
}

// The bytes of rows of D numbers that a rank sends to the other one, which gets half of all, in a layer and micro-batch.
TEST(ExpertCodesCount, HalveTheBytesThatGoToExperts) {
  const auto sent = [](const std::string& recipe, nn::Checkpointing mode) {
    train::EngineOptions options = mixture_options(recipe);
    options.layout = {.mesh = Mesh({1, 2, 1, 1}, 2)};
    options.checkpointing = mode;
    const parallel::Groups groups = parallel::silent_groups(options.layout.mesh, 0);
    const train::StepCount count = train::count_step(
        options, groups, [](std::string_view, const Work&) { return 1e-6; }, 3);
    double bytes = 0;
    for (const OpTime& op : count.compute) {
      if (op.work.group == groups.expert->name() && std::string_view(op.op) == "all_to_all") bytes += op.work.bytes;
    }
    const double rows = static_cast<double>(options.micro_batch_size * options.seq_len * options.model.experts_per_token) / 2;
    return bytes / (3 * rows * static_cast<double>(options.model.layers * options.model.dim));
  };
  EXPECT_EQ(sent("bf16", nn::Checkpointing::none), 4 * 2) << "rows and results, forward and backward";
  for (const char* recipe : kRecipes) EXPECT_EQ(sent(recipe, nn::Checkpointing::none), 2 * (1 + 2)) << recipe;
  EXPECT_EQ(sent("bf16", nn::Checkpointing::selective), 5 * 2) << "backward sends the rows again";
  for (const char* recipe : kRecipes) EXPECT_EQ(sent(recipe, nn::Checkpointing::selective), 3 * 1 + 2 * 2) << recipe;
}

}  // namespace
}  // namespace octet::testing
