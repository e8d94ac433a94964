// Commands that would overwrite what they read.
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

TEST(OutputFile, IsNoInputOfQuantize) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  fs::copy(run / "out/model/model.safetensors", run / "x.safetensors");
  fs::create_symlink("x.safetensors", run / "link");
  const std::string before = read_file(run / "x.safetensors");
  const std::string quantize = "quantize --input x.safetensors --recipe fp8_delayed --role weight ";
  for (const char* output : {"x.safetensors", "./x.safetensors", "link"}) {
    EXPECT_TRUE(refused(run.run(quantize + "--output " + output), 2, concat("--output=", output, ": the command would overwrite this file of x.safetensors")));
    EXPECT_TRUE(refused(run.run(quantize + "--output y.safetensors --state-out " + output), 2, concat("--state-out=", output, ": the command would")));
  }
  EXPECT_TRUE(refused(run.run(quantize + "--output y.safetensors --state-out y.safetensors"), 2, "--state-out=y.safetensors: "));
  EXPECT_TRUE(read_file(run / "x.safetensors") == before);
  EXPECT_FALSE(fs::exists(run / "y.safetensors"));
}

// A name that was mistyped costs no other file. Numbers of an earlier command are replaced.
TEST(OutputFile, ReplacesOnlySafetensors) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  fs::copy(run / "out/model/model.safetensors", run / "x.safetensors");
  const std::string toml = read_file(run / "run.toml");
  const std::string quantize = "quantize --input x.safetensors --recipe fp8_delayed --role weight ";
  const char* const why = "=run.toml: the file there is not in safetensors format";
  EXPECT_TRUE(refused(run.run(quantize + "--output run.toml"), 2, concat("--output", why)));
  EXPECT_TRUE(refused(run.run(quantize + "--output y.safetensors --state-out run.toml"), 2, concat("--state-out", why)));
  EXPECT_TRUE(refused(run.run("probe --model out --recipe bf16 --device cpu --tokens x.safetensors --output run.toml"), 2,
                      concat("--output", why)));
  EXPECT_EQ(read_file(run / "run.toml"), toml);
  for (int time = 0; time < 2; ++time) EXPECT_EQ(run.run(quantize + "--output y.safetensors").code, 0);
}

TEST(OutputFile, IsNoInputOfProbe) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  const std::string weights = "out/model/model.safetensors", before = read_file(run / weights);
  fs::copy(run / weights, run / "tokens.safetensors");  // refused before it is read
  const std::string probe = "probe --model out --recipe bf16 --device cpu ";
  EXPECT_TRUE(refused(run.run(probe + "--tokens tokens.safetensors --output tokens.safetensors"), 2, "--output=tokens.safetensors: "));
  EXPECT_TRUE(refused(run.run(probe + "--tokens other.safetensors --calibrate tokens.safetensors --output tokens.safetensors"), 2,
                      "--output=tokens.safetensors: "));
  EXPECT_TRUE(refused(run.run(probe + "--tokens tokens.safetensors --output " + weights), 2, concat("--output=", weights, ": ")));
  EXPECT_TRUE(read_file(run / weights) == before);
  EXPECT_TRUE(read_file(run / "tokens.safetensors") == before);
}

}  // namespace
}  // namespace octet::testing
