// Several processes train together, resume on other meshes, and give the run of one process. These are parameterised tests: the
// quick program instantiates them for one recipe, the long one for other recipes and all meshes.
#pragma once

#include <cmath>

#include "octet/checkpoint/steps.h"
#include "support/tiny_run.h"

namespace octet::testing {

// Gradients are added in another order, so the last bits of weights differ, and with them some FP8 codes. The first loss is
// equal, and the later ones drift apart slowly.
inline ::testing::AssertionResult same_curve(const std::filesystem::path& actual, const std::filesystem::path& expected,
                                             double first = 1e-12) {
  const auto a = metrics_of(actual), b = metrics_of(expected);
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " steps, not " << b.size();
  for (const auto& [step, line] : b) {
    const double got = a.at(step)["loss"], wanted = line["loss"], share = step == 1 ? first : 0.01;
    if (std::abs(got - wanted) > share * wanted)
      return ::testing::AssertionFailure() << "step " << step << ": " << got << ", not " << wanted;
    if (a.at(step)["tokens_seen"] != line["tokens_seen"]) return ::testing::AssertionFailure() << "tokens at step " << step;
  }
  return ::testing::AssertionSuccess();
}

struct Together {
  const char* name;
  const char* recipe;
  int ranks;
  const char* mesh;
  int more_ranks;
  const char* another;  // the mesh that resumes the run
  double first = 1e-12;
};
inline void PrintTo(const Together& t, std::ostream* os) { *os << t.name << " " << t.recipe; }
inline std::string name_of_run(const ::testing::TestParamInfo<Together>& info) {
  return concat(info.param.name, "_", info.param.recipe);
}

class RanksTogether : public ::testing::TestWithParam<Together> {};

// The same mesh repeats bit for bit. More ranks, and then one rank, resume from its checkpoint.
TEST_P(RanksTogether, TrainTheRunOfOne) {
  const Together& t = GetParam();
  const TinyRun run;
  const auto train = [&](int ranks, const std::string& mesh, int steps, const std::string& out) {
    const ProgramResult result = run.run(concat(
        ranks > 1 ? concat("launch -n ", ranks, " -- ") : "", "train run.toml --training.micro_batch_size=1 ", mesh,
        " --lr_scheduler.decay=constant --precision.recipe=", t.recipe, " --training.steps=", steps, " --run.output_dir=", out));
    EXPECT_EQ(result.code, 0) << mesh << "\n" << result.err;
    return result;
  };
  train(1, "", 18, "one");
  const ProgramResult first = train(t.ranks, t.mesh, 12, "many");
  EXPECT_EQ(first.out.find("[1]"), std::string::npos) << "rank 0 speaks for all:\n" << first.out;
  EXPECT_EQ(json_of(read_file(run / "many/run.json"))["processes"], t.ranks);
  train(t.ranks, t.mesh, 12, "again");
  EXPECT_TRUE(same_outcome(outcome_of(run / "again"), outcome_of(run / "many")));
  const ProgramResult more = train(t.more_ranks, t.another, 16, "many");
  EXPECT_NE(more.err.find("resuming after step 12"), std::string::npos) << more.err;
  const ProgramResult alone = train(1, "", 18, "many");
  EXPECT_NE(alone.err.find("resuming after step 16"), std::string::npos) << alone.err;
  EXPECT_NE(alone.err.find(" -> 1"), std::string::npos) << "what changed is said:\n" << alone.err;
  EXPECT_TRUE(same_curve(run / "many", run / "one", t.first));
}

inline std::vector<Together> together_in(const char* recipe) {
  return {{"Replicas", recipe, 2, "--parallel.replicate=2", 4, "--parallel.replicate=4"},
          {"Sequences", recipe, 2, "--parallel.context=2", 4, "--parallel.context=2 --parallel.replicate=2", 1e-3},
          {"Layers", recipe, 2, "--parallel.tensor=2", 8, "--parallel.context=2 --parallel.tensor=2", 1e-3}};
}

// Runs `options` on one mesh after the other, for three steps each. Each checkpoint, which `each` gets to see, is read by ranks
// that hold other shards. The whole must be the run of one rank. Differences double every three or four steps, so twelve meshes
// with four steps each would end a few percent from it.
inline void expect_a_run_from_mesh_to_mesh(const std::string& options, const std::vector<std::string>& meshes,
                                           const std::function<void(const TinyRun&, int step)>& each = {}) {
  const TinyRun run;
  const std::string all = " --training.micro_batch_size=1 --lr_scheduler.decay=constant " + options;
  constexpr int kSteps = 3;
  const int last = kSteps * static_cast<int>(meshes.size());
  ASSERT_EQ(run.run(concat("train run.toml --run.output_dir=one --training.steps=", last, all)).code, 0);
  for (int step = kSteps; step <= last; step += kSteps) {
    const std::string& mesh = meshes[static_cast<std::size_t>(step / kSteps - 1)];
    const ProgramResult result = run.run(concat(mesh, " --run.output_dir=many --training.steps=", step, all));
    ASSERT_EQ(result.code, 0) << mesh << "\n" << result.err;
    EXPECT_EQ(result.err.find("resuming after step ") != std::string::npos, step > kSteps) << result.err;
    if (each) each(run, step);
  }
  EXPECT_TRUE(same_curve(run / "many", run / "one"));
}

inline std::string on_mesh(int ranks, const std::string& options) {
  return concat("launch -n ", ranks, " -- train run.toml ", options);
}

// The model that the ranks send to rank 0 equals the model in their checkpoint.
inline void expect_export_of_checkpoint(const TinyRun& run, int step) {
  const std::string name = checkpoint::step_name(step);
  const ProgramResult exported = run.run(concat("convert export --checkpoint many/checkpoints/", name, " --output ", name));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(read_file(run / name / "model.safetensors"), read_file(run / "many/model/model.safetensors")) << step;
}

inline const std::string kOfMeshes = "--training.global_batch_size=8 --model.head_dim=16 --precision.recipe=";
// An expert's tensors are the tokens of all ranks that share the experts out, so calibration finds other scales there.
inline const std::string kOfMixtures =
    "--model.model_type=mixtral --model.num_local_experts=4 --model.num_experts_per_tok=2 --precision.recipe=fp8_delayed "
    "--metrics.health_freq=3 --precision.calibrate=false ";

}  // namespace octet::testing
