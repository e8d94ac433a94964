#include "octet/telemetry/jsonl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::telemetry {
namespace {
using testing::TemporaryFolder;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

StepMetrics line_at(std::int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 5.0 / static_cast<double>(step);
  m.grad_norm = 0.1;
  m.lr = 3e-4;
  m.tokens_seen = step * 2048;
  if (step % 2 == 0) m.eval_loss = 4.5;
  return m;
}

std::vector<std::int64_t> steps_in(const std::filesystem::path& path) {
  std::vector<std::int64_t> steps;
  for (const auto& record : read_jsonl<StepMetrics>(path).records) steps.push_back(record.step);
  return steps;
}
using Steps = std::vector<std::int64_t>;

TEST(Jsonl, TheFieldsAreThoseOfTheContract) {
  EXPECT_EQ(
      to_json_line(StepMetrics{.step = 3}),
      R"({"step":3,"loss":null,"grad_norm":null,"lr":null,"tokens_seen":0,"step_time_s":null,"data_time_s":null,)"
      R"("tokens_per_s":null,"tokens_per_s_per_gpu":null,"tflops_per_gpu":null,"mfu":null,"mfu_fp8":null,)"
      R"("memory_peak_gib":null,"fp8_flop_share":0.0,"fp8_underflow_pct":null,"fp8_saturated_pct":null,)"
      R"("skipped_steps":0,"samples_per_s":null,"comm_exposed_s":null,)"
      R"("pipeline_bubble_s":null,"expert_balance":null,"router_z":null,"eval_loss":null,"eval_losses":null,"eta_s":null})");
  EXPECT_EQ(
      to_json_line(HealthSample{.step = 1, .tensor = "a\"b.x", .amax = 2, .scale = 0.5, .saturated_pct = 0, .flushed_pct = 1.5}),
      R"({"step":1,"tensor":"a\"b.x","amax":2.0,"scale":0.5,"saturated_pct":0.0,"flushed_pct":1.5,"sqnr_db":null,"kurtosis":null,)"
      R"("amax_to_rms":null,"alignment":null,"top_channel_pct":null,"edge_pct":null})");
}

TEST(Jsonl, EveryFieldSurvivesTheRoundTripBitwise) {
  StepMetrics m;
  double next = 0.1;
  const auto fill = [&](const FieldName&, auto& field) {
    using Field = std::decay_t<decltype(field)>;
    next = next * 1.37 + 1.0 / 3.0;
    if constexpr (std::is_same_v<Field, std::int64_t>) {
      field = static_cast<std::int64_t>(next * 1e6);
    } else if constexpr (std::is_same_v<Field, NamedNumbers>) {
      field = {{"chat", next}, {"code", next / 3}};
    } else {
      field = next;
    }
  };
  visit_fields(m, fill);
  const auto back = from_json_line<StepMetrics>(to_json_line(m));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(to_json_line(*back), to_json_line(m));
  EXPECT_EQ(back->eval_loss, m.eval_loss);
  EXPECT_EQ(back->eval_losses, m.eval_losses);
  EXPECT_EQ(back->loss, m.loss);
  EXPECT_EQ(back->step, m.step);
}

TEST(Jsonl, NamedNumbersAreAnObject) {
  StepMetrics m = line_at(4);
  m.eval_losses = {{"z", 2.5}, {"a\"", kInfinity}};
  const std::string line = to_json_line(m);
  EXPECT_NE(line.find(R"("eval_losses":{"z":2.5,"a\"":null})"), std::string::npos) << line;
  const auto back = from_json_line<StepMetrics>(line);
  ASSERT_TRUE(back.has_value());
  ASSERT_EQ(back->eval_losses.size(), 2u);
  EXPECT_EQ(back->eval_losses[0], (std::pair<std::string, double>("z", 2.5)));
  EXPECT_EQ(back->eval_losses[1].first, "a\"");
  EXPECT_TRUE(std::isnan(back->eval_losses[1].second));
  // What follows the object is read, too.
  EXPECT_EQ(from_json_line<StepMetrics>(R"({"eval_losses":{"a":1},"step":7,"loss":3})")->loss, 3);
  EXPECT_EQ(from_json_line<StepMetrics>(R"({"step":7,"eval_losses":{}})")->eval_losses.size(), 0u);
  for (const char* other : {"3", "[1]", "true", "\"a\"", R"({"a":"b"})", R"({"a":true})", R"({"a":{"b":1}})", R"({"a":[1]})"}) {
    EXPECT_FALSE(from_json_line<StepMetrics>(std::string(R"({"step":7,"eval_losses":)") + other + "}").has_value()) << other;
  }
}

TEST(Jsonl, NumbersThatAreNotFiniteAreNull) {
  StepMetrics m = line_at(4);
  m.loss = kInfinity;
  m.grad_norm = std::nan("");
  m.eval_loss = -kInfinity;
  const auto back = from_json_line<StepMetrics>(to_json_line(m));
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(std::isnan(back->loss));
  EXPECT_TRUE(std::isnan(back->grad_norm));
  EXPECT_FALSE(back->eval_loss.has_value());
}

TEST(Jsonl, HostileLinesAreRefused) {
  const std::vector<std::string> hostile = {"",
                                            " ",
                                            "null",
                                            "3",
                                            "\"step\"",
                                            "[]",
                                            "[1]",
                                            "{}",
                                            R"({"loss":1})",
                                            R"({"step":-1})",
                                            R"({"step":1.5})",
                                            R"({"step":1e300})",
                                            R"({"step":"1"})",
                                            R"({"step":null})",
                                            R"({"step":true})",
                                            R"({"step":{}})",
                                            R"({"step":[1]})",
                                            R"({"step":9223372036854775808})",
                                            R"({"step":18446744073709551616})",
                                            R"({"step":1,"loss":"x"})",
                                            R"({"step":1,"loss":1e999})",
                                            R"({"step":1,"loss":[1]})",
                                            R"({"step":1,"loss":{"step":1}})",
                                            R"({"step":1)",
                                            R"({"step":1}})",
                                            R"({"step":1} {"step":2})",
                                            R"({"step":1,})",
                                            R"({step:1})",
                                            R"({"step":1,"loss":NaN})",
                                            R"({"a":{"step":1}})",
                                            "{\"step\":1,\"x\":\"\xff\xfe\"}",
                                            std::string("{\"step\":1}\0", 11),
                                            std::string(100000, '['),
                                            std::string(100000, '{')};
  for (const std::string& line : hostile) EXPECT_FALSE(from_json_line<StepMetrics>(line).has_value()) << line.substr(0, 80);
  EXPECT_FALSE(from_json_line<HealthSample>(R"({"step":1,"tensor":3})").has_value());
}

TEST(Jsonl, UnknownFieldsArePassedOver) {
  const auto m =
      from_json_line<StepMetrics>(R"({"new":{"step":9,"loss":[1,{"loss":2}]},"step":7,"flag":true,"text":"t","loss":2})");
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->step, 7);
  EXPECT_EQ(m->loss, 2);
  const auto nested = [](std::size_t levels) {
    return R"({"step":1,"deep":)" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  EXPECT_TRUE(from_json_line<StepMetrics>(nested(63)).has_value());
  EXPECT_FALSE(from_json_line<StepMetrics>(nested(64)).has_value());
}

TEST(Jsonl, AppendsAndResumesWithoutShowingAStepTwice) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  {
    JsonlWriter<StepMetrics> writer(path, std::nullopt);
    for (int step = 1; step <= 6; ++step) writer.write(line_at(step));
    writer.sync();
  }
  EXPECT_EQ(steps_in(path), (Steps{1, 2, 3, 4, 5, 6}));
  {
    JsonlWriter<StepMetrics> writer(path, 4);
    EXPECT_EQ(steps_in(path), (Steps{1, 2, 3, 4}));
    writer.write(line_at(5));
  }
  EXPECT_EQ(steps_in(path), (Steps{1, 2, 3, 4, 5}));
  const std::string before = read_file(path);
  { JsonlWriter<StepMetrics> writer(path, 100); }
  EXPECT_EQ(read_file(path), before);
  { JsonlWriter<StepMetrics> writer(path, std::nullopt); }
  EXPECT_EQ(read_file(path), "");
}

TEST(Jsonl, ALineCutAtAnyByteIsDroppedOnResume) {
  const TemporaryFolder folder;
  const std::string first = to_json_line(line_at(1)) + "\n";
  const std::string second = to_json_line(line_at(2));
  for (std::size_t cut = 0; cut < second.size(); ++cut) {
    const auto path = folder.write("metrics.jsonl", first + second.substr(0, cut));
    JsonlWriter<StepMetrics> writer(path, 2);
    writer.write(line_at(2));
    ASSERT_EQ(read_file(path), first + second + "\n") << "cut at byte " << cut;
  }
  const auto path = folder.write("metrics.jsonl", first + second);
  JsonlWriter<StepMetrics> writer(path, 2);
  EXPECT_EQ(read_file(path), first + second + "\n") << "an editor has left out the last newline";
}

// Only records of steps that are done again may go.
TEST(Jsonl, LinesThatAreNoRecordsStay) {
  const TemporaryFolder folder;
  const std::string records = to_json_line(line_at(1)) + "\n" + R"({"step":2.0})" + "\n" + to_json_line(line_at(3)) + "\n",
                    notes = "step,loss\n# a note\n";
  const auto path = folder.write("metrics.jsonl", records + notes + to_json_line(line_at(4)) + "\n# another\n{\"st");
  { JsonlWriter<StepMetrics> writer(path, 3); }
  EXPECT_EQ(read_file(path), records + notes + "# another\n");
  folder.write("metrics.jsonl", notes);
  { JsonlWriter<StepMetrics> writer(path, std::nullopt); }
  EXPECT_EQ(read_file(path), notes);
}

TEST(Jsonl, RewindForgetsAndGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  JsonlWriter<StepMetrics> writer(path, std::nullopt);
  for (int step = 1; step <= 5; ++step) writer.write(line_at(step));
  writer.rewind(2);
  writer.write(line_at(3));
  EXPECT_EQ(steps_in(path), (Steps{1, 2, 3}));
}

// The writer reads the file from its end, in blocks. The oracle reads it from its beginning.
std::string kept_by_reading_all(const std::string& text, std::int64_t last_step) {
  std::string kept, others;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = text.substr(at, end - at);
    const auto record = from_json_line<StepMetrics>(line);
    if (record && record->step <= last_step) {
      kept += std::exchange(others, "") + line + "\n";
    } else if (!record && !line.empty()) {
      others += line + "\n";
    }
  }
  return kept + others;
}

TEST(Jsonl, ReadingFromTheEndAgreesWithReadingAll) {
  const TemporaryFolder folder;
  std::string lines;
  for (int step = 1; step <= 300; ++step) {
    lines += to_json_line(line_at(step)) + "\n";
    if (step % 150 == 75) lines += R"({"step":)" + std::to_string(step) + R"(,"text":")" + std::string(70'000, 'x') + "\"}\n";
    if (step == 180) lines += "a note\n";
  }
  for (const std::string& end :
       std::vector<std::string>{"", "\n\n", "rubbish\n", "{\"step\":3,\"lo", "rubbish\n{\"step\":9001}\n\n{\"st"}) {
    for (const int last_step : {0, 1, 74, 75, 76, 299, 300, 5000}) {
      const std::string expected = kept_by_reading_all(lines + end, last_step);
      const auto path = folder.write("metrics.jsonl", lines + end), opened = folder.write("opened.jsonl", lines + end);
      JsonlWriter<StepMetrics> writer(path, 10'000), opens(opened, last_step);
      folder.write("metrics.jsonl", lines + end);
      writer.rewind(last_step);
      ASSERT_TRUE(read_file(path) == expected) << last_step << " " << end;
      ASSERT_TRUE(read_file(opened) == expected) << last_step << " " << end;
      writer.write(line_at(last_step + 1));
      ASSERT_TRUE(read_file(path) == expected + to_json_line(line_at(last_step + 1)) + "\n") << last_step << " " << end;
    }
  }
  for (const char* end : {"", "\n\n", "rubbish\n", "{\"step\":3,\"lo", "{\"step\":3}"}) {
    const auto path = folder.write("metrics.jsonl", lines + end);
    EXPECT_EQ(last_record<StepMetrics>(path)->step, read_jsonl<StepMetrics>(path).records.back().step) << end;
  }
  const auto path = folder.write("zeros.jsonl", std::string(1 << 20, '\0'));
  EXPECT_FALSE(last_record<StepMetrics>(path));
  EXPECT_EQ(size_up_to<StepMetrics>(FileReader(path), 5), 0u);
}

// A run that goes back to a checkpoint cuts its files while another process reads them.
TEST(Jsonl, ReadingFromTheEndPassesOverWhatWasCutMeanwhile) {
  const TemporaryFolder folder;
  std::string lines;
  std::vector<std::size_t> sizes = {0};  // after each step
  for (int step = 1; step <= 2000; ++step) {
    lines += to_json_line(line_at(step)) + "\n";
    sizes.push_back(lines.size());
  }
  for (const int steps : {1999, 1000, 1, 0}) {
    for (const std::size_t more : {0, 10}) {  // bytes of an incomplete line
      const auto path = folder.write("metrics.jsonl", lines);
      const FileReader file(path);
      std::filesystem::resize_file(path, sizes[static_cast<std::size_t>(steps)] + more);
      EXPECT_EQ(size_up_to<StepMetrics>(file, 2000), sizes[static_cast<std::size_t>(steps)]) << more;
    }
  }
}

// Lines that follow must not go into a file that nobody can open any more.
TEST(Jsonl, AFileThatIsRemovedIsCreatedAgain) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  JsonlWriter<StepMetrics> writer(path, std::nullopt);
  for (int step = 1; step <= 3; ++step) writer.write(line_at(step));
  std::filesystem::remove(path);
  for (int step = 4; step <= 5; ++step) writer.write(line_at(step));
  EXPECT_EQ(steps_in(path), (Steps{4, 5}));

  // An editor writes a new file and gives it the name.
  std::filesystem::copy_file(path, folder / "copy");
  std::filesystem::rename(folder / "copy", path);
  writer.write(line_at(6));
  EXPECT_EQ(steps_in(path), (Steps{4, 5, 6}));
}

// logrotate renames a file, and makes a new one of the old name or leaves that to the writer.
TEST(Jsonl, AFileThatIsRenamedIsFollowedByAnother) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl", old = folder / "metrics.jsonl.1";
  JsonlWriter<StepMetrics> writer(path, std::nullopt);
  writer.write(line_at(1));
  for (const bool creates : {true, false}) {
    std::filesystem::rename(path, old);
    if (creates) folder.write("metrics.jsonl", "");
    ::testing::internal::CaptureStderr();
    for (int step = 2; step <= 3; ++step) writer.write(line_at(step));
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(warning.find("metrics.jsonl: was renamed; records are now added to a file of the old name"), warning.npos)
        << warning;
    EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
    EXPECT_EQ(steps_in(path), (Steps{2, 3}));
  }
  EXPECT_EQ(steps_in(old), (Steps{2, 3}));

  // If the folder is gone, as when its file system is not mounted any more, the open file is the right one.
  std::filesystem::rename(folder.path(), folder.path().string() + "-away");
  writer.write(line_at(4));
  std::filesystem::rename(folder.path().string() + "-away", folder.path());
  EXPECT_EQ(steps_in(path), (Steps{2, 3, 4}));
}

// A run need not end because its records are in a file of another name.
TEST(Jsonl, AFileThatIsRenamedStaysOpenIfNoOtherCanBeOpened) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl", old = folder / "metrics.jsonl.1";
  JsonlWriter<StepMetrics> writer(path, std::nullopt);
  writer.write(line_at(1));
  std::filesystem::rename(path, old);
  std::filesystem::create_directory(path);
  ::testing::internal::CaptureStderr();
  for (int step = 2; step <= 3; ++step) writer.write(line_at(step));
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("metrics.jsonl: cannot open: Is a directory. The file of this name was renamed, and records are still"),
            warning.npos)
      << warning;
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  EXPECT_EQ(steps_in(old), (Steps{1, 2, 3}));

  std::filesystem::remove(path);
  writer.write(line_at(4));
  EXPECT_EQ(steps_in(path), (Steps{4}));
}

TEST(Jsonl, ReaderCountsBrokenLines) {
  const auto contents = parse_jsonl<StepMetrics>("{\"step\":1}\n\nrubbish\n{\"step\":2}\r\n{\"step\":3}\n{\"step\":4,\"lo");
  ASSERT_EQ(contents.records.size(), 3u);
  EXPECT_EQ(contents.records[2].step, 3);
  EXPECT_EQ(contents.broken_lines, 2);
}

TEST(Jsonl, AFullDiskIsOneClearLine) {
  JsonlWriter<StepMetrics> writer("/dev/full", 0);
  EXPECT_EQ(testing::error_of(ExitCode::internal, [&] { writer.write(line_at(1)); }),
            "/dev/full: cannot write: No space left on device");
  EXPECT_THROW((JsonlWriter<StepMetrics>("/nowhere/at/all.jsonl", 0)), Error);
  EXPECT_THROW(read_jsonl<StepMetrics>("/nowhere/at/all.jsonl"), Error);
}

TEST(RunInfo, RoundTripAndRefusals) {
  const TemporaryFolder folder;
  RunInfo info;
  info.name = "fp8_delayed";
  info.recipe = "fp8_delayed";
  info.model = "\xff<b>\n";
  info.parameters = 918272;
  info.lr = 3e-3;
  info.code = 75;
  info.config.text = R"({"run":{"name":"a","steps":[{"x":1}]},"steps":7})";
  write_run_info(folder / "run.json", info);
  const RunInfo back = read_run_info(folder / "run.json");
  EXPECT_EQ(back.name, info.name);
  EXPECT_EQ(back.parameters, info.parameters);
  EXPECT_EQ(back.lr, info.lr);
  EXPECT_EQ(back.code, 75);
  EXPECT_EQ(back.config.text, info.config.text);
  EXPECT_EQ(back.versions.text, "null");
  EXPECT_EQ(back.steps, 0) << "keys within the configuration are no fields";
  const auto json = nlohmann::ordered_json::parse(read_file(folder / "run.json"));
  EXPECT_EQ(json["config"].dump(), info.config.text);
  EXPECT_TRUE(json["versions"].is_null());
  EXPECT_EQ(back.model, "\xEF\xBF\xBD<b>\n");
  for (const char* text : {"", "[]", "{}", R"({"name":3})", R"({"name":"a","steps":"b"})"}) {
    const auto path = folder.write("bad.json", text);
    EXPECT_THROW(read_run_info(path), Error) << text;
  }
}

TEST(Fields, NamesAreUnique) {
  std::set<std::string> json, tensorboard;
  const StepMetrics metrics;
  visit_fields(metrics, [&](const FieldName& name, const auto&) {
    EXPECT_TRUE(json.insert(name.json).second) << name.json;
    if (*name.tensorboard) {
      EXPECT_TRUE(tensorboard.insert(name.tensorboard).second) << name.tensorboard;
    }
  });
  EXPECT_EQ(json.size(), 25u);
}

TEST(Jsonl, ListsHoldWholeNumbersAlone) {
  const auto chosen = [](const std::string& list) -> std::optional<std::vector<std::int64_t>> {
    const auto sample = from_json_line<ExpertSample>(R"({"step":1,"layer":"a","chosen":)" + list + "}");
    return sample ? std::optional(sample->chosen) : std::nullopt;
  };
  EXPECT_EQ(chosen("[1, 0, 99]"), (std::vector<std::int64_t>{1, 0, 99}));
  EXPECT_EQ(chosen("[]"), std::vector<std::int64_t>());
  for (const char* wrong : {"null", "3", "\"3\"", "{}", "[1.5]", "[null]", "[true]", "[\"1\"]", "[[1]]", "[{}]", "[1e300]", "[1",
                            "[99999999999999999999]"})
    EXPECT_FALSE(chosen(wrong)) << wrong;
  EXPECT_FALSE(from_json_line<HealthSample>(R"({"step":1,"tensor":[1]})"));
  EXPECT_TRUE(from_json_line<ExpertSample>(R"({"step":1,"other":[[1],{"a":[2]}],"chosen":[4]})"));
}

}  // namespace
}  // namespace octet::telemetry
