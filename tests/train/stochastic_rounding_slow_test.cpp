// Stochastic rounding over many steps gives the bits of one rank on every mesh.
#include <gtest/gtest.h>

#include "support/expert_parts.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using parallel::Mesh;

class StochasticRounding : public MeshTest, public ::testing::WithParamInterface<std::string> {};

// The state after ten steps: everything that the ranks hold, and the codes and values that linears read in the eleventh step.
struct TenSteps {
  SharedGlobals held, read;
};
std::unique_ptr<TenSteps> after_ten_steps(const PartsOptions& options) {
  auto after = std::make_unique<TenSteps>();
  on_parts(options, [&](ExpertParts& parts) {
    parts.initialise();
    for (std::uint32_t step = 1; step <= 10; ++step) parts.step(step);
    parts.add_to(after->held);
    parts.step(11, &after->read);
  });
  return after;
}

// The rounding depends only on seed, step, name and element, whichever rank holds the element. Without clipping, the optimizer
// gets each gradient as its sum, which is exact here.
TEST_P(StochasticRounding, OfTenStepsIsThatOfOneRank) {
  PartsOptions options{.recipe = GetParam(),
                       .storage = {.master_weights = false, .moments = DType::bf16},
                       .optimizer = {.max_grad_norm = 0, .seed = 3}};
  const auto expected = after_ten_steps(options);
  for (const Mesh& mesh : {Mesh({1, 2, 1, 1}), Mesh({1, 4, 1, 1}), Mesh({1, 8, 1, 1}), Mesh({2, 2, 1, 1})}) {
    options.layout = {.mesh = mesh};
    const auto actual = after_ten_steps(options);
    EXPECT_EQ(actual->held.globals.difference(expected->held.globals), "") << text(options.layout);
    EXPECT_EQ(actual->read.globals.difference(expected->read.globals), "") << text(options.layout);
  }
  options.layout = {};
  options.optimizer.seed = 4;
  EXPECT_NE(after_ten_steps(options)->held.globals.difference(expected->held.globals), "") << "nothing is rounded by it";
}

INSTANTIATE_TEST_SUITE_P(Recipes, StochasticRounding, ::testing::Values("fp8_delayed", "fp8_block"));

}  // namespace
}  // namespace octet::testing
