// One writer for a run folder.
#include <csignal>

#include "octet/checkpoint/steps.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

const std::string kLong = "train run.toml --training.steps=100000 --checkpoint.interval=4 ";

Json lock_of(const fs::path& run) { return json_of(read_file(run / "run.lock")); }

TEST(RunLock, ASecondRunIsRefusedAndTheFirstGoesOn) {
  const TinyRun run;
  Process first(kLong, run.path());
  ASSERT_TRUE(first.read_to_step(3));
  const Json lock = lock_of(run / "out");
  for (const std::string& command : {kLong, "launch -n 2 -- " + kLong + "--parallel.shard=2",
                                    std::string("compare run.toml --recipes bf16 --training.steps=2 --output out")}) {
    const ProgramResult second = run.run(command);
    EXPECT_EQ(second.code, 2) << command << "\n" << second.err;
    EXPECT_NE(second.err.find(concat("out: another run writes here: process ", lock["pid"].dump(), " on ",
                                     lock["host"].get<std::string>(), ", since ", lock["since"].get<std::string>())),
              std::string::npos)
        << second.err;
  }
  EXPECT_EQ(lock_of(run / "out")["run"], lock["run"]);
  ASSERT_TRUE(first.read_to_step(30)) << "undisturbed";
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 75);
  EXPECT_FALSE(fs::exists(run / "out/run.lock"));
}

TEST(RunLock, AfterAKillTheNextRunTakesOverAtOnce) {
  const TinyRun run;
  for (const std::string how : {"", "launch -n 2 -- "}) {
    Process first(how + kLong + (how.empty() ? "" : "--parallel.shard=2"), run.path());
    ASSERT_TRUE(first.read_to_step(6));
    const Json lock = lock_of(run / "out");
    ASSERT_EQ(::kill(lock["pid"].get<pid_t>(), SIGKILL), 0) << "rank 0 holds the lock";
    first.wait();
    const ProgramResult next = run.train("--training.steps=12 --run.set_aside=true --resume none");
    EXPECT_EQ(next.code, 0) << next.err;
    EXPECT_NE(next.err.find(concat("out: taken over from process ", lock["pid"].dump(), " on ")), std::string::npos) << next.err;
    EXPECT_NE(next.err.find("which has ended"), std::string::npos) << next.err;
    EXPECT_FALSE(fs::exists(run / "out/run.lock"));
  }
}

TEST(RunLock, TheNextRunRemovesWhatAKillLeftOfAnExport) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=8").code, 0);
  fs::create_directory(run / "out/adapter");
  write_text(run / "out/model/model.safetensors.tmp-123", "half");
  write_text(run / "out/adapter/adapter_config.json.tmp-123-456", "half");
  ASSERT_TRUE(fs::exists(run / "out/model/model.safetensors.tmp-123"));
  EXPECT_EQ(run.train("--training.steps=8").code, 0);
  EXPECT_FALSE(fs::exists(run / "out/model/model.safetensors.tmp-123"));
  EXPECT_TRUE(fs::is_empty(run / "out/adapter"));
}

// Another machine has taken the folder over: this run ends, and publishes nothing more.
TEST(RunLock, WhoHasLostTheFolderEnds) {
  const TinyRun run;
  Process first(kLong, run.path());
  ASSERT_TRUE(first.read_to_step(3));
  Json lock = lock_of(run / "out");
  lock["host"] = "elsewhere";
  lock["boot"] = "another";
  lock["run"] = "another";
  write_text(run / "next", lock.dump());
  fs::rename(run / "next", run / "out/run.lock");
  const ProgramResult result = first.wait();  // the next save notices it, or the thread after at most 5 s
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_NE(result.err.find("out: another run has taken this folder over: process "), std::string::npos) << result.err;
  EXPECT_EQ(lock_of(run / "out")["run"], "another") << "the other's lock stays";
  EXPECT_EQ(json_of(read_file(run / "out/run.json"))["ended"], "") << "run.json is the other's";
}

}  // namespace
}  // namespace octet::testing
