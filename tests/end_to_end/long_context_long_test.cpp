// Runs examples/long-context in the form that needs no GPU. Each run has sequences of 16,384 tokens and takes a quarter of a
// minute on one core.
#include <cmath>

#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class LongContext : public ::testing::Test {
 protected:
  // Runs the walkthrough and returns its output.
  std::string walk() const {
    const auto [status, log] = walk_with(program_path());
    EXPECT_EQ(status, 0) << log;
    return log;
  }
  // The status and the output.
  std::pair<int, std::string> walk_with(const std::string& program) const {
    const std::string script = source_dir() + "/examples/long-context/walkthrough";
    const std::string command =
        "cd '" + folder_.path().string() + "' && OCTET='" + program + "' bash '" + script + "' papers > log 2>&1";
    const int status = std::system(command.c_str());
    return {status, read_file(folder_ / "log")};
  }
  void write_papers(int words) const {
    std::filesystem::create_directory(folder_ / "papers");
    int i = 0;
    for (const std::string& document : tiny_documents(12, words)) write_text(folder_ / concat("papers/", i++, ".txt"), document);
  }
  TemporaryFolder folder_;
};

// Returns the part from "== 5. ..." on, which has the last table.
std::string table_of(const std::string& log) { return log.substr(std::min(log.size(), log.find("\n== 5."))); }

TEST_F(LongContext, TheWalkthroughRunsGoesOnAndBeginsAnewWithOtherTexts) {
  write_papers(1200);
  const std::string first = walk();
  EXPECT_NE(first.find("does not fit the 79.1 GiB of an H100"), std::string::npos) << "without context parallelism\n" << first;
  EXPECT_NE(first.find("  exit code 3\n"), std::string::npos) << first;
  EXPECT_NE(first.find("  fits the 79.1 GiB of an H100"), std::string::npos) << "with it\n" << first;
  EXPECT_NE(first.find("  exit code 0\n"), std::string::npos) << first;
  // A model with random weights predicts no byte better than another.
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    const std::string says = " before step 1, in " + recipe + ": ";
    const std::size_t at = first.find(says);
    ASSERT_NE(at, std::string::npos) << first;
    EXPECT_NEAR(std::stod(first.substr(at + says.size())), std::log(256.0), 0.15) << recipe;
  }
  EXPECT_EQ(first.find("resuming"), std::string::npos) << first;
  // The table has a line with numbers for each recipe.
  std::istringstream table(first.substr(first.find("recipe            samples/s")));
  std::string line, recipe;
  std::getline(table, line);
  for (const std::string expected : {"bf16", "fp8_delayed"}) {
    double samples = 0, tokens = 0, tflops = 0;
    table >> recipe >> samples >> tokens >> tflops;
    EXPECT_EQ(recipe, expected);
    EXPECT_GT(samples, 0) << first;
    EXPECT_NEAR(tokens, 8192 * samples, 0.01 * tokens) << "half of each sequence of 16,384 on each of two";
    EXPECT_GT(tflops, 0) << first;
  }

  const std::string again = walk();
  EXPECT_NE(again.find("resuming after step 3"), std::string::npos) << again;
  EXPECT_EQ(table_of(again), table_of(first)) << "nothing was left to do";

  // Other texts have another folder, so everything begins anew. A program that only shows its arguments ends the walkthrough there.
  write_papers(1201);
  write_text(folder_ / "show", "#!/bin/sh\necho \"$@\" >&2\nexit 1\n");
  std::filesystem::permissions(folder_ / "show", std::filesystem::perms::owner_all);
  const auto [code, other] = walk_with((folder_ / "show").string());
  EXPECT_NE(code, 0) << other;
  const std::string output = "--output out/long-context/tiny-";
  const std::size_t at = other.find(output);
  ASSERT_NE(at, std::string::npos) << other;
  EXPECT_FALSE(std::filesystem::exists(folder_ / ("out/long-context/tiny-" + other.substr(at + output.size(), 12)))) << other;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "out/long-context"), {}), 1) << "that of the first texts";
}

}  // namespace
}  // namespace octet::testing
