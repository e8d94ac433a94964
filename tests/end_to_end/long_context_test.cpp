// Checks what the plans of examples/long-context promise. long_context_slow_test.cpp runs the whole example.
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

TEST(LongContext, ThePlanRefusesWithoutContextParallelismOnly) {
  const auto plan = [](const std::string& options) {
    return run_program(
        "plan configs/llama3.1-8b.toml --gpus 4xH100 --training.seq_len=16384 --training.global_batch_size=4 " + options,
        source_dir());
  };
  EXPECT_TRUE(refused(plan("--parallel.shard=4"), 3, "this run needs 97.4 GiB of a GPU, and an H100 has 79.1 GiB"));
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    const ProgramResult with = plan("--parallel.context=4 --precision.recipe=" + recipe);
    EXPECT_EQ(with.code, 0) << with.err;
    EXPECT_NE(with.out.find("  fits the 79.1 GiB of an H100"), std::string::npos) << with.out;
  }
}

// The program's plans end with another exit code than the walkthrough expects.
TEST(LongContext, TheWalkthroughEndsWhereAPlanIsNotWhatItSays) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "papers");
  write_text(folder / "papers/0.txt", tiny_documents(1, 1200).front());
  const std::string script = source_dir() + "/examples/long-context/walkthrough";
  for (const auto& [code, says] : {std::pair("0", "exit code 0, not 3"), std::pair("2", "exit code 2, not 3")}) {
    write_text(folder / "octet", concat("#!/bin/sh\n'" + program_path() + "' \"$@\" || [ \"$1\" != plan ] || exit ", code, "\n"));
    std::filesystem::permissions(folder / "octet", std::filesystem::perms::owner_all);
    const std::string command = "cd '" + folder.path().string() + "' && OCTET=./octet bash '" + script + "' papers > log 2>&1";
    const int status = std::system(command.c_str());
    const std::string log = read_file(folder / "log");
    EXPECT_EQ(WEXITSTATUS(status), 1) << log;
    EXPECT_NE(log.find(says), std::string::npos) << log;
    EXPECT_EQ(log.find("== 3."), std::string::npos) << log;
  }
}

}  // namespace
}  // namespace octet::testing
