// `octet bench checkpoint` and `octet bench step` as a user runs them. Times depend on the machine; bytes and units do not, and
// no checkpoint is left behind.
#include <gtest/gtest.h>

#include "octet/base/file.h"
#include "octet/base/json.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

std::uint64_t bytes_in(const std::filesystem::path& safetensors) {
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : tensors_of(safetensors)) sum += bytes.size();
  return sum;
}

TEST(BenchCheckpoint, MeasuresTheSavesOfARun) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=1 --run.output_dir=trained").code, 0);
  const std::uint64_t bytes = bytes_in(last_checkpoint(run / "trained") / "rank-00000.safetensors");
  const ProgramResult result = run.run("bench checkpoint run.toml --saves 2 --json saves.json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("steps between snapshots that cost 1%"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("training stands still, copy beside the step"), std::string::npos) << result.out;
  const Json saves = json_of(read_file(run / "saves.json"));
  EXPECT_EQ(saves["bytes"].dump(), std::to_string(bytes));
  EXPECT_EQ(saves["snapshot_bytes"].dump(), std::to_string(bytes)) << "one rank holds all that it writes";
  for (const char* name :
       {"step_seconds", "stands_still_seconds", "stands_still_seconds_waiting_for_copy", "step_seconds_beside_save",
        "copy_bytes_per_s", "write_bytes_per_s", "snapshot_stands_still_seconds", "snapshot_seconds"}) {
    EXPECT_GT(saves[name].get<double>(), 0) << name;
  }
  EXPECT_GE(saves["snapshot_costs_seconds"].get<double>(), saves["snapshot_stands_still_seconds"].get<double>());
  EXPECT_EQ(names_in(run / "out"), std::vector<std::string>{}) << "its checkpoints are gone";
}

TEST(BenchCheckpoint, SaysWhyThereIsNoPlaceForCheckpoints) {
  const TinyRun run;
  for (const std::string folder : {"/proc/absent", "/proc/self"})
    EXPECT_TRUE(refused(run.run("bench checkpoint run.toml --run.output_dir=" + folder), 2, folder, "cannot create",
                        ": No such file or directory"));
}

TEST(BenchCheckpoint, MeasuresTheFirstOfSeveralRanks) {
  const TinyRun run;
  const ProgramResult one = run.run("bench checkpoint run.toml --saves 1 --json one.json");
  ASSERT_EQ(one.code, 0) << one.err;
  const ProgramResult two = run.run("launch -n 2 -- bench checkpoint run.toml --saves 1 --json two.json");
  ASSERT_EQ(two.code, 0) << two.err;
  const auto bytes = [&](const char* file) { return json_of(read_file(run / file))["bytes"].get<double>(); };
  EXPECT_EQ(run.run("bench checkpoint run.toml --saves 1 --json one.json").code, 0) << "replaces its own numbers";
  EXPECT_LT(bytes("two.json"), bytes("one.json")) << "each of two ranks writes about half";
  EXPECT_EQ(names_in(run / "out"), std::vector<std::string>{});
}

TEST(BenchCheckpoint, NeedsARun) { EXPECT_TRUE(refused(run_program("bench checkpoint"), 2, "RUN.toml")); }

TEST(BenchStep, GivesProductsTheRateOfTheirOperations) {
  const TinyRun run;
  for (const std::string recipe : {"fp32", "mxfp8"}) {
    const ProgramResult result =
        run.run("bench step run.toml --seconds 0.01 --precision.emulate=true --json step.json --precision.recipe=" + recipe);
    ASSERT_EQ(result.code, 0) << result.err;
    const Json measured = json_of(read_file(run / "step.json"));
    bool has_product = false;
    for (const Json& op : measured["ops"]) {
      const std::string name = op["op"];
      const bool computes = name.starts_with("gemm ") || name.starts_with("attention_");
      EXPECT_EQ(op["unit"], computes ? "GF/s" : "GB/s") << name;
      has_product |= name.starts_with("gemm " + recipe);
    }
    EXPECT_TRUE(has_product) << result.out;
  }
}

// Numbers replace earlier numbers only, and nothing is measured in vain.
TEST(BenchJson, ReplacesNoOtherFile) {
  const TinyRun run;
  const std::string toml = read_file(run / "run.toml");
  EXPECT_TRUE(refused(run.run("bench gemm --json run.toml"), 2, "run.toml", "not valid JSON", "Give another name, or remove it first"));
  EXPECT_EQ(read_file(run / "run.toml"), toml);
  for (const char* other : {"{\"a\": 1}", "[]", "[1]", "3"}) {
    write_text(run / "other.json", other);
    EXPECT_TRUE(refused(run.run("bench gemm --json other.json"), 2, "other.json: this JSON is not from `octet bench`"));
    EXPECT_EQ(read_file(run / "other.json"), other);
  }
  std::filesystem::create_directory(run / "folder");
  const ProgramResult folder = run.run("bench gemm --json folder");
  EXPECT_TRUE(refused(folder, 2, "folder", "not a regular file but a folder"));
  EXPECT_EQ(folder.out, "") << "nothing was measured";
}

}  // namespace
}  // namespace octet::testing
