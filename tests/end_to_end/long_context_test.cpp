// examples/long-context, the form that needs no GPU.
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

TEST(LongContext, TheWalkthroughRuns) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "papers");
  int i = 0;
  for (const std::string& document : tiny_documents(12, 1200)) write_text(folder / ("papers/" + std::to_string(i++) + ".txt"), document);
  const std::string script = std::string(OCTET_SOURCE_DIR) + "/examples/long-context/walkthrough";
  const std::string command = "cd '" + folder.path().string() + "' && OCTET='" OCTET_PROGRAM "' bash '" + script + "' papers tiny > log 2>&1";
  const int status = std::system(command.c_str());
  const std::string log = read_file(folder / "log");
  ASSERT_EQ(status, 0) << log;
  EXPECT_NE(log.find("does not fit the 79.1 GiB of an H100"), std::string::npos) << "without context parallelism\n" << log;
  EXPECT_NE(log.find("fits the 79.1 GiB of an H100"), std::string::npos) << "with it\n" << log;
  // The last table has a line for each recipe, with numbers.
  std::istringstream table(log.substr(log.find("recipe            samples/s")));
  std::string line, recipe;
  std::getline(table, line);
  for (const std::string expected : {"bf16", "fp8_delayed"}) {
    double samples = 0, tokens = 0, tflops = 0;
    table >> recipe >> samples >> tokens >> tflops;
    EXPECT_EQ(recipe, expected);
    EXPECT_GT(samples, 0) << log;
    EXPECT_NEAR(tokens, 512 * samples, 0.01 * tokens) << "half of each sequence of 1,024 on each of two";
    EXPECT_GT(tflops, 0) << log;
  }
}

}  // namespace
}  // namespace octet::testing
