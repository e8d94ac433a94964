// `octet plan --goodput` with snapshots in memory, and the rows of docs/plan.md.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

Json goodput(const std::string& arguments) {
  const ProgramResult result = run_program("plan " + arguments + " --json", source_dir());
  EXPECT_EQ(result.code, 0) << arguments << result.err;
  return json_of(result.out);
}

// The times and intervals of a run that is played step by step.
struct Played {
  double mtbf_s = 0, step_s = 0, recover_s = 0;
  double still_s = 0;        // a pause for a copy of the state
  double complete_s = 0;     // after the pause; only then does the copy count
  std::int64_t every = 1;    // steps between copies; none begins before the last one is complete
  double other_pause_s = 0;  // for a checkpoint, from which this run never continues
  std::int64_t other_every = 1;
};

// Plays a run step by step until it has failed `failures` times. Returns the share of its time that went into the steps that the
// run still has.
double productive(const Played& run, int failures) {
  std::mt19937_64 random(11);
  std::exponential_distribution<double> until_failure(1 / run.mtbf_s);
  double now = 0, failure = until_failure(random), complete_at = -1;
  std::int64_t step = 0, begun = 0, kept = 0;  // steps that are done, in the copy that is on its way, and in the newest copy
  std::int64_t next = run.every;
  for (int failed = 0; failed < failures;) {
    double end = now + run.step_s + (step > 0 && step % run.other_every == 0 ? run.other_pause_s : 0);
    if (step >= next && complete_at <= now) {  // the copy is of the state before this step, which runs beside it
      end += run.still_s;
      begun = step;
      complete_at = now + run.still_s + run.complete_s;
      next = step + run.every;
    }
    if (complete_at >= 0 && complete_at <= std::min(end, failure)) kept = begun;
    if (end < failure) {
      now = end;
      ++step;
      continue;
    }
    for (end = failure; failure <= end; ++failed) {  // fails again while it recovers
      end = failure + run.recover_s;
      failure += until_failure(random);
    }
    now = end;
    step = begun = kept;
    complete_at = -1;
    next = kept + run.every;
  }
  return static_cast<double>(kept) * run.step_s / now;
}

Played played(const Json& plan, const Json& way) {
  return {.mtbf_s = plan["failure_every_s"], .step_s = plan["step_s"], .every = way["interval"]};
}

// What one failure costs varies by about its mean, so its mean is known to a fraction 1 / sqrt(failures). The formula lets steps
// begin at any time and neglects a second failure while a copy is on its way.
void expect_played(const Json& way, Played run, const std::string& what) {
  constexpr int kFailures = 10000;
  const double lost = 1 - productive(run, kFailures), rare = (run.complete_s + run.recover_s) / run.mtbf_s;
  EXPECT_NEAR(1 - way["productive"].get<double>(), lost, (4 / std::sqrt(kFailures) + rare) * lost) << what;
}

void expect_played_ways(const Json& plan, const std::string& what) {
  const Json snapshots = plan["snapshots"], best = plan["best"];
  Played run = played(plan, snapshots);
  run.recover_s = snapshots["recover_s"], run.still_s = snapshots["still_s"], run.complete_s = snapshots["complete_s"];
  run.other_pause_s = plan["save_s"], run.other_every = plan["as_configured"]["interval"];
  expect_played(snapshots, run, what + ": snapshots");
  run = played(plan, best);
  run.recover_s = plan["recover_s"], run.still_s = plan["save_s"], run.complete_s = plan["write_s"];
  expect_played(best, run, what + ": checkpoints");
}

constexpr const char* kTwoHosts = "configs/llama3.1-8b.toml --gpus 16xH200 --goodput --mtbf 50 ";
// `auto` then takes as many snapshots as cost 1% of the time.
constexpr const char* kOnTwoHosts = "configs/llama3.1-8b.toml --gpus 16xH200 --goodput --mtbf 50 --checkpoint.mtbf_hours=0 ";

// Each of 16 ranks holds a sixteenth of a master weight and two moments in F32, and a host keeps two snapshots of each of its
// ranks and of each of another host's.
TEST(PlanGoodput, ARestartReadsSnapshots) {
  const Json plan = goodput(kOnTwoHosts), snapshots = plan["snapshots"];
  const double bytes = snapshots["bytes"], step = plan["step_s"];
  EXPECT_NEAR(bytes, 12 * 8.03e9 / 16, 0.001 * bytes);
  EXPECT_EQ(snapshots["host_bytes"], 8 * 4 * bytes);
  EXPECT_NEAR(snapshots["complete_s"], bytes / 5e9 + bytes / 1e9, 1e-6) << "it is taken, and then travels to the other host";
  EXPECT_NEAR(snapshots["recover_s"], 5 + 3 + 2.9 + 5 + bytes / 3.2e9 + bytes / 1e9, 1e-6);
  EXPECT_EQ(snapshots["interval"], std::ceil(snapshots["complete_s"].get<double>() / step)) << "as often as the network allows";
  EXPECT_GT(snapshots["productive"], plan["best"]["productive"]);
  double sum = 0;
  for (const char* part : {"productive", "saves", "recovery", "repeated"}) sum += snapshots[part].get<double>();
  EXPECT_NEAR(sum, 1, 1e-12);
  expect_played_ways(plan, kOnTwoHosts);
}

TEST(PlanGoodput, SnapshotsFollowTheConfiguration) {
  const Json sent = goodput(kOnTwoHosts)["snapshots"];
  const Json stays = goodput(std::string(kOnTwoHosts) + "--checkpoint.replicas=0")["snapshots"];
  const double bytes = sent["bytes"];
  EXPECT_EQ(stays["host_bytes"], 8 * 2 * bytes);
  EXPECT_NEAR(stays["complete_s"], bytes / 5e9, 1e-6);
  EXPECT_NEAR(stays["recover_s"], 5 + 3 + 2.9 + 5 + bytes / 3.2e9, 1e-6);

  const Json replicated = goodput(std::string(kOnTwoHosts) + "--parallel.replicate=2")["snapshots"];
  EXPECT_EQ(replicated["host_bytes"], (8 + 1) * 2 * replicated["bytes"].get<double>()) << "only rank 0 sends its snapshot";
  EXPECT_NEAR(replicated["complete_s"], replicated["bytes"].get<double>() * (1 / 5e9 + 1 / 1e9), 1e-6);
  EXPECT_NEAR(replicated["recover_s"], 5 + 3 + 2.9 + 5 + replicated["bytes"].get<double>() * (1 / 3.2e9 + 1 / 1e9), 1e-6);

  const Json one_host = goodput("configs/llama3.1-8b.toml --gpus 8xH200 --goodput --parallel.replicate=2")["snapshots"];
  EXPECT_NEAR(one_host["recover_s"], 5 + 3 + 2.9 + 5 + one_host["bytes"].get<double>() / 3.2e9, 1e-6) << "there is no other host";
  const Json lost = goodput(std::string(kOnTwoHosts) + "--parallel.replicate=2 --checkpoint.replicas=0")["snapshots"];
  EXPECT_NEAR(lost["recover_s"], 5 + 3 + 2.9 + 5 + lost["bytes"].get<double>() / 3.2e9, 1e-6) << "nobody keeps its snapshots";

  EXPECT_EQ(goodput(std::string(kOnTwoHosts) + "--checkpoint.memory_every=70")["snapshots"]["interval"], 70);
  EXPECT_TRUE(goodput(std::string(kOnTwoHosts) + "--checkpoint.memory_every=0")["snapshots"].is_null());

  const auto text = [](const std::string& options) {
    const ProgramResult result = run_program("plan " + (kOnTwoHosts + options), source_dir());
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  for (const char* part :
       {"a recovery from memory", "  from storage  ", "a host keeps ", "on another host, too", "Without a spare"}) {
    EXPECT_NE(text("").find(part), std::string::npos) << part << text("");
  }
  EXPECT_NE(text("--checkpoint.replicas=0").find("The loss of a host takes its snapshots with it"), std::string::npos);
  EXPECT_EQ(text("--checkpoint.memory_every=0").find("napshot"), std::string::npos);
}

// A run that is told how often its GPUs fail loses less time than one that takes as many snapshots as cost 1%, or as few as
// checkpoints.
TEST(PlanGoodput, SnapshotsFollowTheRateOfFailures) {
  const auto snapshots = [](const std::string& options) { return goodput(std::string(kTwoHosts) + options)["snapshots"]; };
  const Json told = snapshots("--checkpoint.mtbf_hours=50"), often = snapshots("--checkpoint.mtbf_hours=0"),
             rarely = snapshots("--checkpoint.mtbf_hours=1e9");
  EXPECT_GT(told["interval"], often["interval"]);
  EXPECT_LT(told["interval"], rarely["interval"]);
  EXPECT_GE(told["productive"], often["productive"]);
  EXPECT_GT(told["productive"], rarely["productive"]);
  expect_played_ways(goodput(std::string(kTwoHosts) + "--checkpoint.mtbf_hours=50"), "told");
}

// The lines between a mark and its end.
std::vector<std::string> marked_lines(const std::string& page, const std::string& mark) {
  const std::size_t begin = page.find("<!-- " + mark + " -->\n");
  if (begin == page.npos) return {};
  std::istringstream text(page.substr(begin, page.find("<!-- end -->", begin) - begin));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// The number at the beginning of a cell: "1,024" is 1024, "22 s" is 22.
std::vector<double> numbers_of(const std::string& row) {
  std::vector<double> numbers;
  std::istringstream cells(row.substr(1));
  for (std::string cell; std::getline(cells, cell, '|');) {
    std::erase(cell, ',');
    numbers.push_back(std::stod(cell));
  }
  return numbers;
}

// Every row is what the program says, and a run that is played with the program's parts has its shares.
TEST(PlanGoodput, TheRowsOfThePageArePlayed) {
  const std::vector<std::string> lines = marked_lines(read_file(source_dir() + "/docs/plan.md"), "goodput");
  ASSERT_EQ(lines.size(), 14u);
  const std::string command = lines[12], first = "octet plan ";
  ASSERT_TRUE(command.starts_with(first)) << command;
  for (std::size_t row = 3; row < 10; ++row) {
    const std::vector<double> cells = numbers_of(lines[row]);
    ASSERT_EQ(cells.size(), 10u) << lines[row];
    std::string arguments = command.substr(first.size());
    for (const auto& [name, value] : {std::pair("GPUS", cells[0]), std::pair("HOURS", cells[1])})
      arguments.replace(arguments.find(name), std::string(name).size(), std::to_string(static_cast<std::int64_t>(value)));
    const Json plan = goodput(arguments), snapshots = plan["snapshots"];
    const auto says = [&](std::size_t cell, double value, double half) { EXPECT_NEAR(cells[cell], value, half) << lines[row]; };
    says(2, plan["failure_every_s"].get<double>() / 3600, 0.00501);
    says(3, snapshots["interval"].get<double>() * plan["step_s"].get<double>(), 0.0501);
    says(4, snapshots["recover_s"], 0.0501);
    says(5, 100 * snapshots["productive"].get<double>(), 0.00501);
    says(6, plan["best"]["interval"].get<double>() * plan["step_s"].get<double>(), 0.0501);
    says(7, plan["recover_s"], 0.0501);
    says(8, 100 * plan["best"]["productive"].get<double>(), 0.00501);
    says(9, 100 * plan["as_configured"]["productive"].get<double>(), 0.0501);
    expect_played_ways(plan, lines[row]);
  }
}

}  // namespace
}  // namespace octet::testing
