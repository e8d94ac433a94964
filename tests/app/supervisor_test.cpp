#include "octet/app/supervisor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "octet/base/checksum.h"
#include "octet/base/require.h"
#include "octet/comm/environment.h"
#include "octet/comm/socket.h"
#include "octet/train/version.h"
#include "support/tiny_run.h"

namespace octet::app {
namespace {

using octet::testing::Process;
using octet::testing::ProgramResult;
using octet::testing::says;
using octet::testing::TinyRun;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Node 1 asks node 0 whether it coordinates, and reads the answer together with a message of node 2, because it stood still when
// both came. The test plays the other two nodes. Node 0 leaves, so node 1 coordinates, and must know of node 2.
TEST(Supervisor, KeepsWhatOthersSendWithAnAnswer) {
  const TinyRun run;
  const std::vector<std::string> hosts = {"127.0.0.5", "127.0.0.6", "127.0.0.7"};
  const std::string list = fmt::format("{}", fmt::join(hosts, ",")), folder = (run / "out").string();
  const std::string command = concat("train run.toml --comm.join_timeout_s=1 --run.output_dir=", folder);
  RunningChecksum sum;  // the port is that of supervisor.cpp
  sum.update(concat(folder, " ", list));
  const comm::Token token = comm::Token::random();
  const auto options = [&](int node) {
    return NodeNetwork::Options{.node = node,
                                .nodes = 3,
                                .host = hosts[static_cast<std::size_t>(node)],
                                .port = comm::kFirstPort + std::stoi(sum.hex().substr(0, 7), nullptr, 16) % comm::kPorts,
                                .token = token,
                                .version = concat("octet launch ", train::version_text()),
                                .silence_s = 30};
  };
  std::optional<NodeNetwork> first(options(0));
  NodeNetwork third(options(2));
  Process process(concat("launch --hosts ", list, " -n 1 --supervise -- ", command), run.path(),
                  concat("exec env JOB_COMPLETION_INDEX=1 OCTET_TOKEN=", token.hex()));
  for (int tries = 0; first->take().empty(); ++tries) {
    ASSERT_LT(tries, 3000) << "node 1 does not ask node 0";
    sleep_ms(10);
  }
  third.connect(1, comm::address_towards(hosts[0]), 5);
  sleep_ms(100);
  process.send(SIGSTOP);
  sleep_ms(100);
  third.send(kUplink, topic::kJoin, text_of(NodeJoin{.name = "third", .host = hosts[2], .port = 1, .command = command}));
  first.reset();
  process.send(SIGCONT);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(result.err, "node2 (third) has joined from 127.0.0.7")) << result.err;
  EXPECT_TRUE(says(result.err, "2 of 3 hosts are here after 1 s, and 3 are needed; missing: node0")) << result.err;
}

}  // namespace
}  // namespace octet::app
