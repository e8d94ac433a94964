#include "octet/telemetry/tensorboard.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/folder.h"
#include "support/paths.h"

namespace octet::telemetry {
namespace {
using testing::TemporaryFolder;
using Scalars = std::map<std::string, std::map<std::int64_t, double>>;

// Returns what TensorBoard's own reader finds, by folder.
std::map<std::string, Scalars> read_events(const std::vector<std::filesystem::path>& folders) {
  const auto script = std::filesystem::path(testing::source_dir()) / "tests/telemetry/read_events.py";
  std::string command = "'" + testing::python_path() + "' '" + script.string() + "'";
  for (const auto& folder : folders) command += " '" + folder.string() + "'";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("popen failed");
  std::string text;
  char chunk[4096];
  for (std::size_t n = 0; (n = fread(chunk, 1, sizeof(chunk), pipe)) > 0;) text.append(chunk, n);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  std::map<std::string, Scalars> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string folder, tag, step, value;
    std::getline(fields, folder, '\t');
    std::getline(fields, tag, '\t');
    std::getline(fields, step, '\t');
    std::getline(fields, value, '\t');
    EXPECT_TRUE(found[folder][tag].emplace(std::stoll(step), std::stod(value)).second) << "twice: " << line;
  }
  return found;
}

StepMetrics events_at(std::int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 4.8125 - 0.25 * static_cast<double>(step);
  m.grad_norm = 0.83;
  m.lr = 2.9e-4;
  m.tokens_seen = step * 4096;
  m.tokens_per_s_per_gpu = 17012;
  m.mfu = 0.885;
  if (step == 2) m.eval_loss = 4.5;
  if (step == 2) m.eval_losses = {{"chat", 4.5}, {"my.code-2", 0.25}};
  return m;
}

TEST(TensorBoard, Crc32cOfTheStandard) {  // vectors of RFC 3720, B.4, and the check value of the CRC catalogue
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending.push_back(c);
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(TensorBoard, ItsOwnReaderFindsEveryValue) {
  const TemporaryFolder folder;
  {
    TensorBoardWriter writer(folder.path(), std::nullopt);
    for (int step = 1; step <= 3; ++step) writer.write(events_at(step));
    const std::vector<std::pair<std::string, double>> more{{"a tag of 200 characters " + std::string(180, 'x'), -1e-30}, {"infinite", INFINITY}};
    writer.write_scalars(std::int64_t{1} << 40, more);
  }
  const Scalars scalars = read_events({folder.path()})[folder.path()];
  const auto& loss = scalars.at("loss_metrics/global_avg_loss");
  ASSERT_EQ(loss.size(), 3u);
  for (const auto& [step, value] : loss) EXPECT_EQ(value, events_at(step).loss);
  EXPECT_EQ(scalars.at("throughput(tps)").at(3), 17012);
  EXPECT_EQ(scalars.at("n_tokens_seen").at(3), 3 * 4096);
  EXPECT_EQ(scalars.at("mfu(%)").at(1), static_cast<double>(static_cast<float>(88.5)));
  EXPECT_EQ(scalars.at("lr").at(1), static_cast<double>(2.9e-4f));
  EXPECT_EQ(scalars.at("validation_metrics/global_avg_loss"), (std::map<std::int64_t, double>{{2, 4.5}}));
  EXPECT_EQ(scalars.at("validation_metrics/loss/chat"), (std::map<std::int64_t, double>{{2, 4.5}}));
  EXPECT_EQ(scalars.at("validation_metrics/loss/my.code-2"), (std::map<std::int64_t, double>{{2, 0.25}}));
  EXPECT_EQ(scalars.count("fp8/underflow(%)"), 0u);
  EXPECT_TRUE(std::isnan(scalars.at("tflops").at(1)));
  EXPECT_EQ(scalars.at("infinite").at(std::int64_t{1} << 40), INFINITY);
  EXPECT_EQ(scalars.at("a tag of 200 characters " + std::string(180, 'x')).begin()->second, static_cast<double>(-1e-30f));
}

TEST(TensorBoard, AResumedRunReplacesTheStepsAfterItsCheckpointAndAFreshOneAll) {
  const TemporaryFolder folder;
  const auto resumed = folder / "resumed", fresh = folder / "fresh";
  {
    TensorBoardWriter writer(resumed, std::nullopt);
    for (int step = 1; step <= 5; ++step) writer.write(events_at(step));
    // As if the process was killed within a record.
    std::filesystem::resize_file(writer.path(), std::filesystem::file_size(writer.path()) - 7);
  }
  StepMetrics m = events_at(4);
  m.loss = 1.5;
  {
    TensorBoardWriter writer(resumed, 3);
    writer.write(m);
    writer.write(events_at(5));
    writer.rewind(4);  // a rollback within the process
    m.step = 5;
    writer.write(m);
  }
  std::filesystem::copy(resumed, fresh);
  TensorBoardWriter(fresh, std::nullopt).write(m);
  auto found = read_events({resumed, fresh});
  EXPECT_EQ(found[resumed]["loss_metrics/global_avg_loss"],
            (std::map<std::int64_t, double>{{1, 4.5625}, {2, 4.3125}, {3, 4.0625}, {4, 1.5}, {5, 1.5}}));
  EXPECT_EQ(found[fresh]["loss_metrics/global_avg_loss"], (std::map<std::int64_t, double>{{5, 1.5}}));
}

TEST(TensorBoard, NamesSortInTheOrderOfWriting) {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(TensorBoardWriter(folder.path(), i).path().filename().string());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(TensorBoard, AFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  const auto file = folder.write("file", "");
  EXPECT_THROW(TensorBoardWriter(file / "below", 0), Error);
}

}  // namespace
}  // namespace octet::telemetry
