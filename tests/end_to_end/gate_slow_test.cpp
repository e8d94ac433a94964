// Supervisors on several hosts (support/hosts.h) that run `octet doctor --gate` before ranks, on hosts that are unfit.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "support/faults.h"
#include "support/supervised_hosts.h"

namespace octet::testing {
namespace {

class SuperviseGate : public SupervisedHosts {
 protected:
  void SetUp() override {
    SupervisedHosts::SetUp();
    if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  }
  // The file of the gate cannot be created. Nothing else on the host notices.
  std::string faults_on(int host) const override {
    return unfit_.contains(host) ? with_faults("open */gate-* 1+ EACCES", concat("faults-", host)) : "";
  }
  // The process of a host's gate, once it runs.
  pid_t gate_of(int host) const {
    pid_t gate = -1;
    comes_true(30, [&] {
      const pid_t child = only_child_of(only_child_of(supervisors_[static_cast<std::size_t>(host)]->pid()));
      std::stringstream command;
      command << std::ifstream(concat("/proc/", child, "/cmdline")).rdbuf();
      if (command.str().find("--gate=") != std::string::npos) gate = child;
      return gate > 1;
    });
    return gate;
  }
  std::set<int> unfit_;
};

const std::string kGateRun = "--training.steps=20 --training.global_batch_size=12 --training.micro_batch_size=1 ";

TEST_F(SuperviseGate, ASpareTakesThePlaceOfAHostThatIsUnfit) {
  const std::string options = kGateRun + "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  unfit_ = {1};
  start(hosts, 1, R"(--spares 1 --gate on --on-exclude 'echo "$OCTET_NODE|$OCTET_CODE|$OCTET_REASON" >>excluded')", options);
  for (int host = 0; host < 3; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_TRUE(is_reference());
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["code"], 79);
  EXPECT_TRUE(says(attempts()[0]["what"], "gate: out/gate-host1-")) << attempts()[0]["what"];
  EXPECT_EQ(attempts()[0]["next"], "restarts without node1 (host1)");
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host0", "host2"}));
  const Json status = json_of(run_.run("status out --json").out);
  EXPECT_EQ(status["excluded"][0]["host"], "host1");
  EXPECT_TRUE(says(status["excluded"][0]["why"], "gate: out/gate-host1-")) << status["excluded"];
  EXPECT_EQ(status["restarts"]["used"], 0) << "such a restart does not count";
  EXPECT_TRUE(says(run_.run("status out").out, "  excluded    node1 (host1): gate: out/gate-host1-"));
  EXPECT_TRUE(says(node_log(0), "node1 (host1) takes no part in this run any more: gate: out/gate-host1-")) << node_log(0);
  EXPECT_TRUE(says(node_log(0), "cannot create: Permission denied. ")) << node_log(0);
  EXPECT_TRUE(says(node_log(2), "this host has passed its full gate in ")) << node_log(2);
  const std::string excluded = read_file(run_ / "excluded");
  EXPECT_EQ(excluded.rfind("host1|79|gate: out/gate-host1-", 0), 0u) << excluded;
  EXPECT_EQ(std::count(excluded.begin(), excluded.end(), '\n'), 1);
}

// The kernel's traffic control holds back what host 1 sends, before the switch of the test. Heartbeats get through.
TEST_F(SuperviseGate, ASpareTakesThePlaceOfAHostWithASlowLink) {
  const std::string options = kGateRun + "--parallel.shard=-1 ";
  const Hosts hosts(4);
  const std::string slow = concat(hosts.on(1), "tc qdisc add dev eth0 root tbf rate 4mbit burst 16kbit latency 50ms 2>/dev/null");
  if (std::system(slow.c_str()) != 0) GTEST_SKIP() << "`tc` (Debian: iproute2) with the discipline `tbf` is missing";
  start(hosts, 1, "--spares 1 --gate on", options);
  for (int host = 0; host < 4; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["code"], 79);
  EXPECT_TRUE(says(attempts()[0]["what"], "gate: has a slow link: it sends at most 0.")) << attempts()[0]["what"];
  EXPECT_EQ(attempts()[0]["next"], "restarts without node1 (host1)");
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host0", "host3", "host2"}));
  EXPECT_EQ(attempts()[1]["excluded"][0]["host"], "host1");
  EXPECT_TRUE(says(node_log(1), "the link to 10.91.0.3:")) << node_log(1);
}

// The coordinator's own host is unfit. It goes on to coordinate, without ranks.
TEST_F(SuperviseGate, AnUnfitCoordinatorRunsNoRanks) {
  const Hosts hosts(2);
  unfit_ = {0};
  start(hosts, 1, "--min-hosts 1 --gate on", kGateRun + "--parallel.shard=-1 ");
  for (int host = 0; host < 2; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host1"}));
  EXPECT_EQ(step(), 20);
}

// On GPUs a full gate takes a minute, longer than ranks have to end. If a host is lost meanwhile, those whose gates still run are
// not taken for lost.
TEST_F(SuperviseGate, AHostIsLostWhileTheOthersRunTheirGates) {
  const Hosts hosts(3);
  start(hosts, 1, "--min-hosts 2 --gate on --grace 0", kGateRun + "--parallel.shard=-1 ");
  const std::vector<pid_t> gates = {gate_of(0), gate_of(1)};
  for (const pid_t gate : gates) {
    ASSERT_GT(gate, 1);
    signal_process(gate, SIGSTOP);
  }
  hosts.power_off(2);
  ASSERT_TRUE(comes_true(30, [&] { return node_log(0).find("node2 (host2) has been silent for 1 s") != std::string::npos; }));
  sleep_s(11);
  for (const pid_t gate : gates) signal_process(gate, SIGCONT);
  for (const int host : {0, 1}) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(says(node_log(host), "this host has passed its full gate in ")) << node_log(host);
  }
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["what"], "node2 (host2) has been silent for 1 s");
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host0", "host1"}));
  EXPECT_EQ(step(), 20);
}

TEST_F(SuperviseGate, EndsIfTooFewHostsAreFit) {
  const Hosts hosts(2);
  unfit_ = {1};
  start(hosts, 1, "--gate on", kGateRun + "--parallel.shard=2 ");
  const ProgramResult first = end_of(0);
  EXPECT_EQ(first.code, 79) << first.err;
  EXPECT_EQ(end_of(1).code, 79);
  EXPECT_TRUE(says(first.err, "stops: 1 of 2 hosts are fit, and 2 are needed")) << first.err;
  EXPECT_EQ(attempts().size(), 1u);
  EXPECT_EQ(run_.run("status out --code").code, 79);
}

// All hosts share the folder, so none of them is to blame.
TEST_F(SuperviseGate, BlamesNoHostForAFolderThatNoneCanWrite) {
  const Hosts hosts(2);
  unfit_ = {0, 1};
  start(hosts, 1, "--gate on", kGateRun + "--parallel.shard=2 ");
  ASSERT_TRUE(comes_true(60, [&] {
    const std::vector<Json> all = std::filesystem::exists(run_ / "out/attempts") ? attempts() : std::vector<Json>();
    return !all.empty() && all[0]["next"] == "restarts in 60 s";
  }));
  EXPECT_EQ(attempts()[0]["code"], 76);
  EXPECT_FALSE(says(node_log(0), "takes no part")) << node_log(0);
  for (const auto& supervisor : supervisors_) signal_process(only_child_of(supervisor->pid()), SIGTERM);
  for (int host = 0; host < 2; ++host) EXPECT_EQ(end_of(host).code, 75);
}

}  // namespace
}  // namespace octet::testing
