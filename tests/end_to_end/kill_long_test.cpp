// Kills runs of every recipe many times.
#include "end_to_end/kills.h"
#include "octet/recipes/registry.h"

namespace octet::testing {
namespace {

class KilledLong : public ::testing::TestWithParam<std::string> {};

TEST_P(KilledLong, RunsEndAsIfNothingHadHappened) {
  for (std::uint32_t round = 0; round < 10; ++round) {
    const std::string options = "--precision.recipe=" + GetParam() +
                                " --precision.emulate=true --checkpoint.async=" + (round % 2 == 0 ? "true" : "false") +
                                (round % 3 == 2 ? " --optimizer.state_dtype=bf16 --optimizer.master_weights=false" : "") +
                                (round % 4 == 3 ? " --activation_checkpoint.mode=full --run.threads=2" : "");
    expect_kills_to_change_nothing(options, 9, name_id(GetParam()) + round);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, KilledLong, ::testing::ValuesIn(recipes::recipe_names()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace octet::testing
