// The fixture of tests whose supervisors run on several hosts (support/hosts.h).
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/hosts.h"
#include "support/tiny_run.h"

namespace octet::testing {

inline void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

inline bool comes_true(double within_s, const std::function<bool()>& condition) {
  for (double waited_s = 0; waited_s < within_s; waited_s += 0.02) {
    if (condition()) return true;
    sleep_s(0.02);
  }
  return condition();
}

class SupervisedHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string refusal = Hosts::refusal();
    if (!refusal.empty()) GTEST_SKIP() << refusal;
  }

  // Silence counts after a second, so that tests are short.
  static constexpr const char* kTimes = "--comm.silence_s=1 --comm.join_timeout_s=30 ";

  // What a shell puts before the command of a host whose system calls may fail, of support/faults.h.
  virtual std::string faults_on(int /*host*/) const { return ""; }

  // Starts the supervisors of all hosts. `list` is the value of --hosts; "": their addresses.
  void start(const Hosts& hosts, int each, const std::string& limits, const std::string& options, const std::string& list = "") {
    command_ = concat("launch --hosts ", list.empty() ? hosts.list() : list, " -n ", each, " --supervise ", limits,
                      " -- train run.toml --metrics.tensorboard=false ", kTimes, options);
    supervisors_.resize(static_cast<std::size_t>(hosts.count()));
    for (int host = 0; host < hosts.count(); ++host) start_on(hosts, host);
  }
  void start_on(const Hosts& hosts, int host) {
    supervisors_[static_cast<std::size_t>(host)] = std::make_unique<Process>(
        command_, run_.path(), concat("exec env ", variables_ ? variables_(host) : "", " ", hosts.on(host), faults_on(host)));
    drain(host);
  }
  // Reads what the supervisor prints, so that it never waits for its reader.
  void drain(int host) {
    Process* const process = supervisors_[static_cast<std::size_t>(host)].get();
    const auto i = static_cast<std::size_t>(host);
    ends_.resize(supervisors_.size());
    ends_[i] = std::async(std::launch::async, [process] { return process->wait(); });
  }
  ProgramResult end_of(int host) { return ends_[static_cast<std::size_t>(host)].get(); }

  // The run of one host that the others must equal.
  void make_reference(int ranks, const std::string& options) const {
    const ProgramResult result = run_.run(
        concat("launch -n ", ranks, " -- train run.toml --metrics.tensorboard=false --run.output_dir=reference ", options));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  bool is_reference() const {
    const ::testing::AssertionResult same = same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference"));
    EXPECT_TRUE(same);
    return static_cast<bool>(same);
  }
  // The step of the last complete line of the metrics.
  std::int64_t step() const {
    if (!std::filesystem::exists(run_ / "out/metrics.jsonl")) return 0;
    const std::string text = read_file(run_ / "out/metrics.jsonl");
    const std::size_t end = text.rfind('\n');
    if (end == text.npos || end == 0) return 0;
    const std::size_t begin = text.rfind('\n', end - 1);
    const Json line = json_of(text.substr(begin == text.npos ? 0 : begin + 1, end - (begin == text.npos ? 0 : begin + 1)));
    return line.is_object() ? line["step"].get<std::int64_t>() : 0;
  }
  bool reaches(std::int64_t wanted) const {
    return comes_true(60, [&] { return step() >= wanted; });
  }
  // What the files of the attempts say, in their order, and each one's "number".
  std::vector<Json> attempts() const {
    std::vector<Json> result;
    for (const auto& path : files_of_attempts()) {
      if (std::optional<Json> attempt = attempt_in(path)) result.push_back(std::move(*attempt));
    }
    return result;
  }
  Json newest_attempt() const {
    const std::set<std::filesystem::path> files = files_of_attempts();
    for (auto file = files.rbegin(); file != files.rend(); ++file) {
      if (std::optional<Json> attempt = attempt_in(*file)) return std::move(*attempt);
    }
    throw std::runtime_error("no attempt has begun");
  }
  static std::optional<Json> attempt_in(const std::filesystem::path& file) {
    Json attempt = json_of(read_file(file));
    if (!attempt.is_object()) return std::nullopt;  // a full disk may have left an empty file
    attempt["number"] = std::stoll(file.stem());
    return attempt;
  }
  std::set<std::filesystem::path> files_of_attempts() const {
    std::set<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(run_ / "out/attempts")) {
      if (entry.path().extension() == ".json") paths.insert(entry.path());  // the others are about to be renamed
    }
    return paths;
  }
  std::string node_log(int node) const { return read_file(run_ / concat("out/logs/node-00", node, ".log")); }

  TinyRun run_;
  std::string command_;
  std::function<std::string(int host)> variables_;  // "NAME=value ..." of a host's scheduler, if it has one
  std::vector<std::unique_ptr<Process>> supervisors_;
  std::vector<std::future<ProgramResult>> ends_;
};

}  // namespace octet::testing
