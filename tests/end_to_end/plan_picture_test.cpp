// `octet plan --picture` and `--schedule`, and the pictures of them in docs/.
#include <regex>
#include <sstream>

#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class PlanPicture : public ::testing::Test {
 protected:
  ProgramResult plan(const std::string& options) const {
    return run_.run("plan run.toml --gpus 4xH100 --training.micro_batch_size=1 --training.global_batch_size=8 " + options);
  }
  TinyRun run_;
};

std::map<std::string, std::size_t> bytes_of(const std::string& svg) {
  const std::regex form("<title>([^:<]+): ([0-9,]+) bytes</title>");
  std::map<std::string, std::size_t> bytes;
  for (std::sregex_iterator match(svg.begin(), svg.end(), form), end; match != end; ++match) {
    std::string digits = (*match)[2];
    std::erase(digits, ',');
    bytes[(*match)[1]] = std::stoull(digits);
  }
  return bytes;
}

TEST_F(PlanPicture, HasTheBytesOfThePlan) {
  const ProgramResult result = plan("--picture memory.svg --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json memory = json_of(result.out)["memory_bytes"];
  std::map<std::string, std::size_t> bytes = bytes_of(read_file(run_ / "memory.svg"));
  std::size_t sum = 0;
  for (const auto& [name, amount] : bytes) sum += amount;
  EXPECT_EQ(sum, memory["needed"].get<std::size_t>());
  for (const char* name : {"weights", "master weights", "moments", "gradients", "activations", "workspace", "state"}) {
    EXPECT_EQ(bytes[name], memory[name].get<std::size_t>()) << name;
  }
  EXPECT_EQ(bytes["CUDA"], memory["context"].get<std::size_t>());
  EXPECT_EQ(bytes["NCCL"], memory["nccl"].get<std::size_t>());
}

TEST_F(PlanPicture, ReplacesItsOwnPictureAndNoOtherFile) {
  ASSERT_EQ(plan("--picture memory.svg").code, 0);
  const std::string first = read_file(run_ / "memory.svg");
  ASSERT_EQ(plan("--picture memory.svg --optimizer.state_dtype=bf16").code, 0);
  EXPECT_NE(read_file(run_ / "memory.svg"), first);

  for (const std::string text : {"", "<svg>mine</svg>\n"}) {
    write_file_atomically(run_ / "mine.svg", text);
    const ProgramResult result = plan("--picture mine.svg");
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("mine.svg exists and is no picture of `octet plan`"), std::string::npos) << result.err;
    EXPECT_EQ(read_file(run_ / "mine.svg"), text);
  }
  fs::create_directory(run_ / "folder.svg");
  EXPECT_EQ(plan("--picture folder.svg").code, 2);
}

TEST_F(PlanPicture, ShowsARunThatDoesNotFit) {
  const ProgramResult result =
      run_program("plan configs/llama3-70b.toml --gpus 8xH100 --picture " + (run_ / "memory.svg").string(), source_dir());
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(read_file(run_ / "memory.svg").find("does not fit; "), std::string::npos);
}

TEST_F(PlanPicture, IsOfOneLayout) {
  for (const std::string options : {"--search --picture memory.svg", "--search --schedule", "--json --schedule"}) {
    EXPECT_EQ(plan(options).code, 2) << options;
  }
  EXPECT_FALSE(fs::exists(run_ / "memory.svg"));
}

struct Range {
  std::string stream, name;
  double begin = 0, end = 0;
};

std::vector<Range> ranges_of(const std::string& text) {
  std::vector<Range> ranges;
  std::istringstream lines(text.substr(text.find("stream ")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    Range range;
    words >> range.stream >> range.begin >> range.end >> std::ws;
    std::getline(words, range.name);
    ranges.push_back(range);
  }
  return ranges;
}

// The layers come in order, each after what it needs, and no two ranges of a stream overlap. Times are printed in microseconds.
TEST_F(PlanPicture, ScheduleIsThatOfThePredictedStep) {
  const std::string options =
      "--parallel.reshard_after_forward=true --parallel.gradients=sharded --training.global_batch_size=4 "
      "--training.reduce_dtype=bf16 ";
  const ProgramResult result = plan(options + "--schedule");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<Range> ranges = ranges_of(result.out);
  std::vector<std::string> computed;
  std::map<std::string, const Range*> by_name, last;
  for (const Range& range : ranges) {
    EXPECT_LE(range.begin, range.end) << range.name;
    by_name[range.name] = &range;
    if (range.stream == "compute" && range.name.starts_with("layer ")) computed.push_back(range.name);
    if (range.name == "optimizer") continue;  // contains other ranges
    if (const Range*& before = last[range.stream]) {
      EXPECT_GE(range.begin + 0.0011, before->end) << before->name << ", " << range.name;
    }
    last[range.stream] = &range;
  }
  EXPECT_EQ(computed, (std::vector<std::string>{"layer 0 forward", "layer 1 forward", "layer 1 backward", "layer 0 backward"}));
  ASSERT_TRUE(by_name.contains("optimizer"));
  const Json step = json_of(plan(options + "--json").out)["predicted"];
  EXPECT_NEAR(1e-3 * by_name["optimizer"]->end,
              step["compute_s"].get<double>() + step["memory_s"].get<double>() + step["waited_s"].get<double>(), 1e-6);
}

// tools/pictures.py draws this schedule. If a change is meant to change it, `octet plan` writes the new one.
TEST_F(PlanPicture, TheScheduleThatDocsShow) {
  const ProgramResult result = run_program(
      "plan configs/llama3.1-8b.toml --gpus 8xH100 --model.num_hidden_layers=4 --training.global_batch_size=8 "
      "--training.micro_batch_size=1 --training.reduce_dtype=bf16 --parallel.reshard_after_forward=true "
      "--parallel.gradients=sharded "
      "--schedule",
      source_dir());
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string golden = golden_dir() + "/plan/schedule.txt";
  EXPECT_EQ(result.out, read_file(golden)) << golden;
}

TEST_F(PlanPicture, TheMemoryThatDocsShow) {
  const ProgramResult result = run_program(
      "plan configs/runs/llama3.1-8b-8xh100.toml --gpus 8xH100 --picture " + (run_ / "memory.svg").string(), source_dir());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(run_ / "memory.svg"), read_file(fs::path(source_dir()) / "docs/pictures/memory.svg"));
}

}  // namespace
}  // namespace octet::testing
