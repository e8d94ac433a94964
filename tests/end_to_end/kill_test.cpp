// A run that is killed by `kill -9` at any moment and started again ends like an uninterrupted run. Metrics, weights, moments,
// FP8 scales and histories are equal bit for bit.
#include "end_to_end/kills.h"

namespace octet::testing {
namespace {

struct Variant {
  std::string name, options;
};

class Killed : public ::testing::TestWithParam<Variant> {};

TEST_P(Killed, RunsEndAsIfNothingHadHappened) { expect_kills_to_change_nothing(GetParam().options, 5, name_id(GetParam().name)); }

const std::string kSmallStates = "--optimizer.state_dtype=bf16 --optimizer.master_weights=false ";
const std::string kFp8States = "--optimizer.state_dtype=fp8 ";
const std::string kBest = "--evaluation.keep_best=true --evaluation.interval=3 ";
const std::string kNow = "--checkpoint.async=false ";

INSTANTIATE_TEST_SUITE_P(Variants, Killed,
                         ::testing::Values(Variant{"Bf16", "--precision.recipe=bf16"},
                                           Variant{"Bf16WrittenAtOnce", kNow + "--precision.recipe=bf16"},
                                           Variant{"Delayed", "--precision.recipe=fp8_delayed"},
                                           Variant{"DelayedWrittenAtOnce", kNow + "--precision.recipe=fp8_delayed"},
                                           Variant{"DelayedOffloaded", "--optimizer.offload=true --precision.recipe=fp8_delayed"},
                                           Variant{"KeepsBest", kBest + "--precision.recipe=bf16"},
                                           Variant{"KeepsBestWrittenAtOnce", kBest + kNow + "--precision.recipe=bf16"},
                                           Variant{"Fp8States", kFp8States + "--precision.recipe=bf16"},
                                           Variant{"DelayedFp8StatesOffloaded",
                                                   kFp8States + "--optimizer.offload=true --precision.recipe=fp8_delayed"},
                                           Variant{"SmallStates", kSmallStates + "--precision.recipe=bf16"},
                                           Variant{"DelayedSmallStates", kNow + kSmallStates + "--precision.recipe=fp8_delayed"}),
                         [](const auto& param) { return param.param.name; });

// Shows that the comparison of outcomes can fail: with another seed everything differs.
TEST(Killed, OutcomesCanDiffer) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=4").code, 0);
  ASSERT_EQ(run.train("--training.steps=4 --run.seed=43 --run.output_dir=other").code, 0);
  const auto one = outcome_of(run / "out"), other = outcome_of(run / "other");
  EXPECT_TRUE(same_outcome(one, one));
  EXPECT_FALSE(same_outcome(one, other));
  std::int64_t tensors = 0;
  for (const auto& [name, value] : one) {
    if (name.rfind("tensor ", 0) != 0) continue;
    ++tensors;
    ASSERT_TRUE(other.count(name)) << name;
    if (value.size() == 4) continue;  // a scale or the count of updates may be equal
    EXPECT_NE(other.at(name), value) << name;
  }
  // There are 12 parameters with two moments each, 8 linears with 3 scales and 3 histories each, and the count of updates.
  EXPECT_GT(tensors, 12 * 3 + 8 * 3 * 2);
}

}  // namespace
}  // namespace octet::testing
