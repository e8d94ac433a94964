#include "octet/app/supervisor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "octet/base/checksum.h"
#include "octet/base/require.h"
#include "octet/comm/environment.h"
#include "octet/comm/socket.h"
#include "octet/telemetry/attempts.h"
#include "octet/train/version.h"
#include "support/tiny_run.h"

namespace octet::app {
namespace {

using octet::testing::Process;
using octet::testing::ProgramResult;
using octet::testing::says;
using octet::testing::TinyRun;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Supervisors of one job, of which this process plays some.
class SupervisorTest : public ::testing::Test {
 protected:
  NodeNetwork::Options options(int node) const {
    RunningChecksum sum;  // the port is that of supervisor.cpp
    sum.update(concat(folder_, " ", list_));
    return {.node = node,
            .nodes = 3,
            .host = hosts_[static_cast<std::size_t>(node)],
            .port = comm::kFirstPort + std::stoi(sum.hex().substr(0, 7), nullptr, 16) % comm::kPorts,
            .token = token_,
            .version = concat("octet launch ", train::version_text()),
            .silence_s = 30};
  }
  Process start(int node, const std::string& limits = "", const std::string& options = "") const {
    return Process(concat("launch --hosts ", list_, " -n 1 --supervise ", limits, " -- ", command_, options), run_.path(),
                   concat("exec env JOB_COMPLETION_INDEX=", node, " OCTET_TOKEN=", token_.hex()));
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
  const std::string command_ = concat("train run.toml --comm.join_timeout_s=1 --run.output_dir=", folder_);
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
  EXPECT_TRUE(says(result.err, "2 of 3 hosts are here after 1 s, and 3 are needed; missing: node0")) << result.err;
}

// --min-hosts allows fewer hosts than the mesh does.
TEST_F(SupervisorTest, SaysHowManyHostsTheMeshNeeds) {
  Process process = start(0, "--min-hosts 1", " --parallel.context=3");
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
}

}  // namespace
}  // namespace octet::app
