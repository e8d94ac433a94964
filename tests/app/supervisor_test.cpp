#include "octet/app/supervisor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "app/http_get.h"
#include "octet/base/checksum.h"
#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/comm/environment.h"
#include "octet/comm/socket.h"
#include "octet/telemetry/attempts.h"
#include "octet/train/version.h"
#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::app {
namespace {

using octet::testing::Process;
using octet::testing::ProgramResult;
using octet::testing::says;
using octet::testing::TinyRun;

// Ranks that a supervisor does not reach: they hold the lock of the run, and raise its counter.
class RanksElsewhere {
 public:
  explicit RanksElsewhere(const std::filesystem::path& folder)
      : thread_([this, folder] {
          for (int counter = 1; !stop_; ++counter, std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
            octet::testing::write_text(folder / "lock",
                                       concat(R"({"host":"elsewhere","machine":"m","run":"a","counter":)", counter, "}"));
            std::filesystem::rename(folder / "lock", folder / "run.lock");
          }
        }) {}
  ~RanksElsewhere() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Supervisors of one job, of which this process plays some.
class SupervisorTest : public ::testing::Test {
 protected:
  NodeNetwork::Options options(int node) const {
    RunningChecksum sum;  // the port is that of supervisor.cpp
    sum.update(folder_);
    return {.node = node,
            .nodes = 3,
            .host = hosts_[static_cast<std::size_t>(node)],
            .port = comm::kFirstPort + std::stoi(sum.hex().substr(0, 7), nullptr, 16) % comm::kPorts,
            .token = token_,
            .version = concat("octet launch ", train::version_text()),
            .silence_s = 30};
  }
  Process start(int node, const std::string& limits = "", const std::string& options = "", const std::string& how = "") const {
    return Process(concat("launch --hosts ", list_, " -n 1 --supervise ", limits, " -- ", command_, options), run_.path(),
                   concat("exec env JOB_COMPLETION_INDEX=", node, " OCTET_TOKEN=", token_.hex(), " ", how));
  }
  // Plays node 0, which coordinates the job "job" and is lost once node 1 has joined. The newest attempt has this number.
  void lose_coordinator(std::int64_t attempt, const std::vector<int>& chosen = {}) {
    NodeNetwork first(options(0));
    ASSERT_EQ(next(first).kind, NodeEvent::Kind::joined);
    first.send(1, topic::kWelcome, text_of(welcome(attempt, chosen)));
    ASSERT_EQ(next(first).what, topic::kJoin);
  }
  static Order welcome(std::int64_t attempt, const std::vector<int>& chosen = {}) {
    return {.attempt = attempt, .recorded = attempt, .job = "job", .ranks = {.count = 0, .all = 0}, .chosen = chosen};
  }
  // An attempt that has not ended.
  telemetry::Attempt attempt_of(int node, std::int64_t number) const {
    return {.number = number,
            .job = "job",
            .coordinator = node,
            .coordinator_host = hosts_[static_cast<std::size_t>(node)],
            .started = "2026-11-25T10:00:00Z"};
  }
  std::string text_of_attempt(std::int64_t number) const {
    const std::filesystem::path path = telemetry::Attempts(folder_).path_of(number);
    return std::filesystem::exists(path) ? read_file(path) : "";
  }
  bool comes_to_say(int node, const std::string& words) const {
    const std::filesystem::path log = run_ / concat("out/logs/node-00", node, ".log");
    for (int tries = 0; tries < 3000; ++tries, sleep_ms(10)) {
      if (std::filesystem::exists(log) && read_file(log).find(words) != std::string::npos) return true;
    }
    return false;
  }
  void kill_rank_0() const {
    pid_t rank = -1;
    for (int tries = 0; rank <= 0 && tries < 3000; ++tries, sleep_ms(10)) rank = run_.pid_of_rank(0);
    ASSERT_GT(rank, 0);
    ::kill(rank, SIGKILL);
  }
  // The next event that a played node hears.
  NodeEvent next(NodeNetwork& network) {
    for (int tries = 0; heard_.empty() && tries < 3000; ++tries, sleep_ms(10)) heard_ = network.take();
    if (heard_.empty()) throw std::runtime_error("a supervisor says nothing");
    const NodeEvent event = heard_.front();
    heard_.erase(heard_.begin());
    return event;
  }

  const TinyRun run_;
  const std::vector<std::string> hosts_ = {"127.0.0.5", "127.0.0.6", "127.0.0.7"};
  const std::string list_ = fmt::format("{}", fmt::join(hosts_, ",")), folder_ = (run_ / "out").string();
  const std::string command_ =
      concat("train run.toml --comm.join_timeout_s=1 --training.global_batch_size=12 --run.output_dir=", folder_);
  const comm::Token token_ = comm::Token::random();
  std::vector<NodeEvent> heard_;
};

// Node 1 asks node 0 whether it coordinates, and reads the answer together with a message of node 2, because it stood still when
// both came. The test plays the other two nodes. Node 0 leaves, so node 1 coordinates, and must know of node 2.
TEST_F(SupervisorTest, KeepsWhatOthersSendWithAnAnswer) {
  std::optional<NodeNetwork> first(options(0));
  NodeNetwork third(options(2));
  Process process = start(1);
  for (int tries = 0; first->take().empty(); ++tries) {
    ASSERT_LT(tries, 3000) << "node 1 does not ask node 0";
    sleep_ms(10);
  }
  third.connect(1, comm::address_towards(hosts_[0]), 5);
  sleep_ms(100);
  process.send(SIGSTOP);
  sleep_ms(100);
  third.send(kUplink, topic::kJoin, text_of(NodeJoin{.name = "third", .host = hosts_[2], .port = 1, .command = command_}));
  first.reset();
  process.send(SIGCONT);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, "node2 (third) has joined from 127.0.0.7")) << result.err;
  EXPECT_TRUE(says(result.err, "2 of 3 hosts are here after ")) << result.err;
  EXPECT_TRUE(says(result.err, " s, and 3 are needed; missing: node0")) << result.err;
}

// Node 0 lets node 1 not join. Whoever started node 1 learns why, once.
TEST_F(SupervisorTest, SaysWhyItIsRefused) {
  NodeNetwork::Options stranger = options(0), smaller = options(0);
  stranger.token = comm::Token::random();
  smaller.nodes = 2;
  for (const auto& [other, why] :
       {std::pair(stranger, "its token is not node0's"), std::pair(smaller, "node1 was started with 3 hosts, node0 with 2")}) {
    const NodeNetwork first(other);
    Process process = start(1);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 78) << result.err;
    const std::string words = concat(" cannot join: ", why);
    EXPECT_TRUE(says(result.err, words)) << result.err;
    EXPECT_EQ(result.err.find(words), result.err.rfind(words)) << result.err;
  }
}

// The port follows from the name of the run's folder.
TEST_F(SupervisorTest, SaysWhoElseMayHaveItsPort) {
  NodeNetwork::Options same = options(1);
  same.host = "127.0.0.1";
  const NodeNetwork other(same);
  const ProgramResult result = start(1).wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, concat("Address already in use; the port follows from run.output_dir = ", folder_))) << result.err;
}

// Another supervisor has the number of this one, as when a host was given up and comes back. It stays out, and coordinates
// nothing.
TEST_F(SupervisorTest, ADoubleEndsByItself) {
  NodeNetwork first(options(0));
  NodeNetwork::Options twin = options(1);
  twin.host = "127.0.0.9";
  NodeNetwork second(twin);
  second.connect(0, hosts_[0], 5);
  Process process = start(1, "--min-hosts 1");
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, "node1 (127.0.0.6) cannot reach the node that coordinates the run: node1 (")) << result.err;
  EXPECT_TRUE(says(result.err, " cannot join: node1 is here already, from 127.0.0.1\n")) << result.err;
  EXPECT_EQ(next(first).kind, NodeEvent::Kind::joined);
  EXPECT_TRUE(first.take().empty()) << "the first node 1 is not disturbed";
}

// Node 1 has stood still for so long that its job is over, and the other hosts run another one in the same folder.
TEST_F(SupervisorTest, ASupervisorOfAnOldJobEnds) {
  for (const bool is_there : {true, false}) {
    SCOPED_TRACE(is_there);
    std::filesystem::remove_all(folder_);
    Process process = start(1, "--min-hosts 1");
    std::optional<NodeNetwork> later(is_there ? std::optional<NodeNetwork>() : std::nullopt);
    lose_coordinator(1);
    if (is_there) {
      later.emplace(options(0));
      ASSERT_EQ(next(*later).kind, NodeEvent::Kind::joined);
      later->send(1, topic::kWelcome,
                  text_of(Order{.attempt = 2, .recorded = 2, .job = "later", .ranks = {.count = 0, .all = 0}}));
    } else {
      telemetry::Attempts(folder_).begin_as(
          {.number = 2, .job = "later", .started = "2026-11-25T10:00:00Z", .seconds = {{"first_step", 1}}});
    }
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 78) << result.err;
    EXPECT_TRUE(says(result.err, ") belongs to a job that is over: ")) << result.err;
  }
}

// Node 1 is a spare, then runs a rank, and then runs none.
TEST_F(SupervisorTest, AFollowerKnowsWhetherItIsHealthy) {
  const int port = comm::port_of(comm::listen_at("127.0.0.1", 0));
  const auto becomes = [&](const std::string& status, const std::string& words) {
    std::string answer;
    for (int tries = 0; tries < 3000; ++tries, sleep_ms(10)) {
      answer = octet::testing::http_get(port, "/healthz");
      if (answer.starts_with("HTTP/1.1 " + status) && says(answer, words)) return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << answer;
  };
  NodeNetwork first(options(0));
  Process process = start(1, "", concat(" --comm.join_timeout_s=60 --metrics.port=", port));
  ASSERT_EQ(next(first).kind, NodeEvent::Kind::joined);
  Order order{.attempt = 1, .recorded = 1, .job = "job", .ranks = {.count = 0, .all = 0}, .chosen = {0, 2}};
  first.send(1, topic::kWelcome, text_of(order));
  ASSERT_EQ(next(first).what, topic::kJoin);
  EXPECT_TRUE(becomes("200 ", "spare\n"));
  order.attempt = order.recorded = 2;
  order.ranks = {.first = 1, .count = 1, .all = 2, .host = hosts_[0], .port = 1};
  order.chosen = {0, 1};
  order.command = {"train", "run.toml", "--comm.join_timeout_s=60", "--run.output_dir=" + folder_};
  first.send(1, topic::kOrder, text_of(order));
  EXPECT_TRUE(becomes("200 ", "joining after step 0\n"));
  first.send(1, topic::kStop, R"({"grace_s": 0})");
  EXPECT_TRUE(becomes("503 ", "no rank runs\n"));
  first.send(1, topic::kFinish, text_of(RunOver{.code = 75}));
  EXPECT_EQ(process.wait().code, 75);
}

// All ranks of a job read the same configuration, whatever the file on their host says.
TEST_F(SupervisorTest, TheConfigurationComesWithTheOrder) {
  NodeNetwork first(options(0));
  Process process = start(1, "", " --comm.join_timeout_s=60");
  ASSERT_EQ(next(first).kind, NodeEvent::Kind::joined);
  first.send(1, topic::kWelcome, text_of(welcome(1)));
  ASSERT_EQ(next(first).what, topic::kJoin);
  Order order = welcome(2, {1});
  order.ranks = {.count = 1, .all = 1, .host = hosts_[1], .port = 1};
  order.command = {"train", "run.toml", "--run.output_dir=" + folder_};
  order.config = "[training]\nstep = 4\n";
  first.send(1, topic::kOrder, text_of(order));
  NodeEnd end;
  while (!end.all) {
    const NodeEvent event = next(first);
    if (event.what == topic::kEnded) end = end_of(event.text);
  }
  EXPECT_EQ(end.code, 2);
  EXPECT_TRUE(says(end.what, "run.toml:2: training.step: unknown key")) << end.what;
  first.send(1, topic::kFinish, text_of(RunOver{.code = 2}));
  const ProgramResult result = process.wait();
  EXPECT_TRUE(says(result.err, "run.toml differs from the configuration with which this run was started")) << result.err;
}

// Node 0 has ordered three restarts and is lost, so node 1 may order no further one.
TEST_F(SupervisorTest, CountsTheRestartsOfOtherCoordinators) {
  Process process = start(1, "--min-hosts 1", " --checkpoint.interval=0 --checkpoint.memory_every=0 --training.steps=3000");
  for (int number = 1; number <= 3; ++number) {
    telemetry::Attempts(folder_).begin_as({.number = number,
                                           .job = "job",
                                           .coordinator = 0,
                                           .coordinator_host = hosts_[0],
                                           .started = "2026-11-25T10:00:00Z",
                                           .ended = "2026-11-25T10:00:05Z",
                                           .code = 137,
                                           .next = "restarts"});
  }
  lose_coordinator(3);
  kill_rank_0();
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 137) << result.err;
  EXPECT_TRUE(says(result.err, "3 restarts in a row brought no newer checkpoint, and --restarts = 3")) << result.err;
}

// Node 0 was lost before it told that the job has saved a checkpoint. Node 1 must not begin anew, as the command says.
TEST_F(SupervisorTest, KnowsOfACheckpointThatNobodyToldOf) {
  std::filesystem::create_directories(folder_);
  octet::testing::write_text(run_ / "out/run.json", R"({"name": "tiny", "job": "job", "attempt": 1, "checkpoint_step": 5})");
  Process process = start(1, "--min-hosts 1", " --resume none --training.steps=4");
  lose_coordinator(1);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_TRUE(says(result.err, "no checkpoint is there, but ")) << result.err;
  EXPECT_TRUE(says(result.err, "says that the one of step 5 was saved")) << result.err;
}

// Node 1 cannot create a file in attempts/, and runs attempt 2 without one. Node 2, which it cannot reach, has begun attempt 2
// with a file. Node 1 must not go on.
TEST_F(SupervisorTest, AnAttemptWithoutAFileYieldsToOneWithAFile) {
  if (octet::testing::faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  octet::testing::write_text(run_ / "away", "");
  Process process =
      start(1, "--min-hosts 1", " --training.steps=3000",
            octet::testing::with_faults(concat("open */out/attempts/*.json* 1+ EIO while ", (run_ / "away").string())));
  lose_coordinator(1);
  pid_t rank = -1;
  for (int tries = 0; rank <= 0 && tries < 3000; ++tries, sleep_ms(10)) rank = run_.pid_of_rank(0);
  telemetry::Attempts(folder_).begin_as(
      {.number = 2, .job = "job", .coordinator = 2, .coordinator_host = hosts_[2], .started = "2026-11-25T10:00:00Z"});
  std::filesystem::remove(run_ / "away");
  kill_rank_0();
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, "cannot reach the node that coordinates the run")) << result.err;
}

// --min-hosts allows fewer hosts than the mesh does.
TEST_F(SupervisorTest, SaysHowManyHostsTheMeshNeeds) {
  Process process = start(0, "--min-hosts 1", " --parallel.context=3 --training.seq_len=36");
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, "1 of 3 hosts are here after 1 s, and 3 are needed; missing: node1")) << result.err;
}

// Somebody asked the run to end between two attempts. Node 1 lost the coordinator before it heard of that, and reads attempts/.
// How the last attempt ended does not matter: the run was asked to end, and job scripts put it back into their queue.
TEST_F(SupervisorTest, ReadsThatTheRunWasAskedToEnd) {
  std::optional<NodeNetwork> first(options(0));
  Process process = start(1);
  ASSERT_EQ(next(*first).kind, NodeEvent::Kind::joined);
  first->send(1, topic::kWelcome, text_of(Order{.attempt = 1, .job = "job", .ranks = {.count = 0, .all = 0}}));
  ASSERT_EQ(next(*first).what, topic::kJoin);
  telemetry::Attempts(folder_).begin_as({.number = 1,
                                         .job = "job",
                                         .coordinator = 0,
                                         .coordinator_host = hosts_[0],
                                         .started = "2026-11-25T10:00:00Z",
                                         .ended = "2026-11-25T10:00:05Z",
                                         .code = 1,
                                         .next = telemetry::kAskedToEnd});
  first.reset();
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(
      says(result.err, concat("out/attempts/00000001.json says that the run has ended with code 75: ", telemetry::kAskedToEnd)))
      << result.err;
}

struct CutOff {
  const char* name;
  const char* limits;
  std::vector<int> chosen;
  bool begins_before, begins_after;  // the coordinator that node 1 has lost, another attempt
};

void PrintTo(const CutOff& cut, std::ostream* out) { *out << cut.name; }

class CutOffTest : public SupervisorTest, public ::testing::WithParamInterface<CutOff> {};

// Node 1 is cut off, and the others go on. It reads their files and the lock, and disturbs neither.
TEST_P(CutOffTest, LeavesTheRunAlone) {
  const CutOff& cut = GetParam();
  const telemetry::Attempts attempts(folder_);
  attempts.begin_as(attempt_of(0, 1));
  if (cut.begins_before) attempts.begin_as(attempt_of(0, 2));
  const RanksElsewhere ranks(folder_);
  const std::string before = text_of_attempt(1);
  Process process = start(1, cut.limits);
  lose_coordinator(1, cut.chosen);
  if (cut.begins_after) {
    ASSERT_TRUE(comes_to_say(1, " coordinates 3 hosts"));
    attempts.begin_as(attempt_of(0, 2));
  }
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  const bool other = cut.begins_before || cut.begins_after;
  EXPECT_TRUE(says(result.err, other ? "cannot reach the node that coordinates the run: "
                                     : "cannot reach the hosts on which the run continues: the counter in "))
      << result.err;
  EXPECT_EQ(text_of_attempt(1), before);
  EXPECT_EQ(text_of_attempt(other ? 3 : 2), "") << "it has begun an attempt";
}

INSTANTIATE_TEST_SUITE_P(Supervisor, CutOffTest,
                         ::testing::Values(CutOff{"ASpare", "", {0, 2}, false, false},
                                           CutOff{"ASpareThatCouldRunAlone", "--min-hosts 1", {0, 2}, false, false},
                                           CutOff{"OthersBeginBeforeItSearches", "--min-hosts 1", {1}, true, false},
                                           CutOff{"OthersBeginWhileItWaits", "--min-hosts 1", {0, 1, 2}, false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// The cable of node 1 is back while it waits for the others, which wait for it.
TEST_F(SupervisorTest, ANodeThatWaitsFindsAnotherThatCoordinates) {
  Process process = start(1, "", " --comm.join_timeout_s=60");
  lose_coordinator(1);
  ASSERT_TRUE(comes_to_say(1, " coordinates 3 hosts"));
  NodeNetwork first(options(0));
  ASSERT_EQ(next(first).kind, NodeEvent::Kind::joined);
  first.send(1, topic::kWelcome, text_of(welcome(1)));
  ASSERT_EQ(next(first).what, topic::kJoin);
  first.send(1, topic::kFinish, text_of(RunOver{.code = 0}));
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
}

// Another node has begun an attempt, of which node 0 does not hear: it was cut off, or stood still. Its own attempt then ends,
// because it misses a rank or because the ranks of the other one have taken the folder over.
class ReplacedTest : public SupervisorTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ReplacedTest, Searches) {
  Process process = start(0, "--min-hosts 1", " --training.steps=1000000 --checkpoint.interval=1000000");
  pid_t rank = -1;
  for (int tries = 0; tries < 3000 && (rank <= 0 || !std::filesystem::exists(run_ / "out/metrics.jsonl")); ++tries, sleep_ms(10))
    rank = run_.pid_of_rank(0);
  ASSERT_GT(rank, 0);
  telemetry::Attempt other = attempt_of(1, 2);
  other.job = telemetry::Attempts(folder_).read().front().job;
  telemetry::Attempts(folder_).begin_as(other);
  const RanksElsewhere ranks(folder_);
  const bool taken_over = GetParam();
  if (!taken_over) ::kill(rank, SIGKILL);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, " cannot reach the node that coordinates the run: ")) << result.err;
  EXPECT_EQ(text_of_attempt(2), telemetry::json_text_of(other));
  EXPECT_EQ(text_of_attempt(3), "");
}

INSTANTIATE_TEST_SUITE_P(Supervisor, ReplacedTest, ::testing::Bool());

// A job runs on hosts that this one does not reach, because its cable is out. A supervisor that is started here must not begin
// another one, which the lock would refuse as a mistake of the user.
TEST_F(SupervisorTest, AFreshNodeThatIsCutOffBeginsNoOtherJob) {
  telemetry::Attempts(folder_).begin_as(attempt_of(0, 1));
  const RanksElsewhere ranks(folder_);
  Process process = start(1, "--min-hosts 1");
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, "cannot reach the hosts on which the run continues: the counter in ")) << result.err;
  EXPECT_EQ(text_of_attempt(2), "");
}

// A follower is asked to leave while no ranks run. It says goodbye, so that the others do not wait for it.
TEST_F(SupervisorTest, AFollowerThatIsAskedBetweenAttemptsSaysSo) {
  NodeNetwork first(options(0));
  Process process = start(1);
  ASSERT_EQ(next(first).kind, NodeEvent::Kind::joined);
  first.send(1, topic::kWelcome, text_of(welcome(1)));
  ASSERT_EQ(next(first).what, topic::kJoin);
  process.send(SIGTERM);
  NodeEvent goodbye = next(first);
  while (goodbye.what == topic::kPages) goodbye = next(first);
  ASSERT_EQ(goodbye.what, topic::kEnded);
  EXPECT_TRUE(end_of(goodbye.text).asked);
  EXPECT_TRUE(end_of(goodbye.text).all);
  EXPECT_EQ(process.wait().code, 75);
}

TEST_F(SupervisorTest, NamesAHostWithAnotherTime) {
  Process process = start(0);
  ASSERT_TRUE(comes_to_say(0, " coordinates 3 hosts"));
  for (const auto& [node, name, ahead_s] : {std::tuple(1, "second", 7200), {2, "third", 5}}) {
    NodeNetwork other(options(node));
    const auto i = static_cast<std::size_t>(node);
    other.connect(0, comm::address_towards(hosts_[i]), 5);
    other.send(kUplink, topic::kJoin,
               text_of(NodeJoin{
                   .name = name, .host = hosts_[i], .port = 1, .command = command_, .utc_s = std::time(nullptr) + ahead_s}));
    EXPECT_TRUE(comes_to_say(0, concat(name, ") has joined")));
  }
  const ProgramResult result = process.wait();
  const std::size_t found = result.err.find("warning: the clock of node1 (second) is ");
  ASSERT_NE(found, std::string::npos) << result.err;
  EXPECT_NEAR(std::stoi(result.err.substr(result.err.find(" is ", found) + 4)), 7200, 30);
  EXPECT_TRUE(says(result.err, " s ahead of that of node0 (")) << result.err;
  EXPECT_FALSE(says(result.err, "the clock of node2")) << result.err;
}

TEST_F(SupervisorTest, EndsIfTheHostsThatWereNotAskedAreTooFew) {
  Process process = start(0, "", " --comm.join_timeout_s=60");
  ASSERT_TRUE(comes_to_say(0, " coordinates 3 hosts"));
  NodeNetwork second(options(1));
  second.connect(0, comm::address_towards(hosts_[1]), 5);
  second.send(kUplink, topic::kJoin, text_of(NodeJoin{.name = "second", .host = hosts_[1], .port = 1, .command = command_}));
  second.send(kUplink, topic::kEnded, text_of(NodeEnd{.code = 75, .asked = true, .all = true}));
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, "hosts were asked to leave, and the others are too few")) << result.err;
}

}  // namespace
}  // namespace octet::app
