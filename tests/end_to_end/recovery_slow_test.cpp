// Tests what supervisors do when a host, or another supervisor, falls silent; mostly with default settings.
// docs/measurements/tests.md has the seconds, which depend on the machine.
#include <chrono>
#include <csignal>
#include <string>

#include "support/supervised_hosts.h"

namespace octet::testing {
namespace {

class SilentHost : public SupervisedHosts {
 protected:
  // Three hosts, one of them a spare, train until `lost` loses power. Returns the two attempts.
  std::vector<Json> lose(const Hosts& hosts, int lost) {
    start(
        hosts, 1, "--spares 1",
        "--checkpoint.interval=500 --training.steps=4000 --training.global_batch_size=12 --parallel.shard=2 --comm.silence_s=5 ");
    EXPECT_TRUE(reaches(20));
    const auto begin = std::chrono::steady_clock::now();
    hosts.power_off(lost);
    EXPECT_TRUE(comes_true(60, [&] { return attempts().back()["seconds"].contains("first_step") && attempts().size() == 2; }));
    const std::chrono::duration<double> recovery = std::chrono::steady_clock::now() - begin;
    RecordProperty("seconds_to_next_step", std::to_string(recovery.count()));
    std::vector<Json> result = attempts();
    for (int host = 0; host < hosts.count(); ++host) {
      if (host != lost) signal_process(only_child_of(supervisors_[static_cast<std::size_t>(host)]->pid()), SIGTERM);
    }
    for (int host = 0; host < hosts.count(); ++host) {
      if (host == lost) continue;
      const ProgramResult end = end_of(host);
      EXPECT_EQ(end.code, 75) << end.err;
      EXPECT_FALSE(says(node_log(host), "gate")) << "there is none on CPUs";
    }
    return result;
  }
};

// One restart, on the spare, from the replica of the lost host's snapshot, without a back-off.
TEST_F(SilentHost, CostsOneRestart) {
  const Hosts hosts(3);
  const std::vector<Json> all = lose(hosts, 1);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["code"], 78);
  EXPECT_EQ(all[0]["what"], "node1 (host1) has been silent for 5 s");
  EXPECT_TRUE(all[0]["next"].get<std::string>().starts_with("restarts")) << all[0]["next"];
  EXPECT_FALSE(says(all[0]["next"], " in 5 s")) << all[0]["next"];
  EXPECT_EQ(all[1]["nodes"], Json({"host0", "host2"}));
  EXPECT_EQ(all[1]["from"], "memory");
  EXPECT_GE(all[1]["from_step"], 2);
  EXPECT_LT(all[1]["seconds"]["waited"], 5.0) << "the first back-off is 5 s: " << all[1];
}

TEST_F(SilentHost, CostsOneRestartIfItCoordinated) {
  const Hosts hosts(3);
  const std::vector<Json> all = lose(hosts, 0);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["nodes"], Json({"host2", "host1"}));
  EXPECT_EQ(all[1]["from"], "memory");
}

// A host without power answers after kConnectS = 1 s. The survivors ask both lost hosts while their ranks end, not afterwards.
TEST_F(SilentHost, TheSearchForACoordinatorGoesOnWhileRanksEnd) {
  constexpr double kGraceS = 2.5;
  const Hosts hosts(6);
  start(hosts, 1, concat("--spares 2 --grace ", kGraceS),
        "--checkpoint.interval=500 --training.steps=4000 --training.global_batch_size=8 --parallel.shard=4 ");
  ASSERT_TRUE(reaches(10));
  for (const int host : {0, 1}) hosts.power_off(host);
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 2 && attempts()[1]["seconds"].contains("first_step"); }));
  const std::vector<Json> all = attempts();
  EXPECT_EQ(all[1]["coordinator"]["node"], 2);
  EXPECT_EQ(all[1]["nodes"].size(), 4u);
  EXPECT_LT(all[0]["seconds"]["stop"], kGraceS + 2) << all[0];
  for (const int host : {2, 3, 4, 5}) signal_process(only_child_of(supervisors_[static_cast<std::size_t>(host)]->pid()), SIGTERM);
  for (const int host : {2, 3, 4, 5}) EXPECT_EQ(end_of(host).code, 75);
}

// The successor of a lost coordinator is lost as soon as it coordinates. Whatever it has begun is over, too.
TEST_F(SilentHost, TheSuccessorIsLostAsWell) {
  const std::string options =
      "--training.steps=150 --training.global_batch_size=12 --training.micro_batch_size=1 --checkpoint.interval=10 "
      "--parallel.shard=3 ";
  make_reference(3, options);
  const Hosts hosts(5);
  start(hosts, 1, "--spares 2", options);
  ASSERT_TRUE(reaches(12));
  hosts.power_off(0);
  ASSERT_TRUE(comes_true(60, [&] { return says(node_log(1), "coordinates 5 hosts"); }));
  hosts.power_off(1);
  for (const int host : {2, 3, 4}) {
    const ProgramResult end = end_of(host);
    EXPECT_EQ(end.code, 0) << end.err;
  }
  EXPECT_TRUE(is_reference());
  EXPECT_EQ(attempts().back()["coordinator"]["node"], 2);
  EXPECT_EQ(attempts().back()["nodes"].size(), 3u);
}

// Only a supervisor stands still, as under a debugger or while its memory is swapped in. Its ranks run on until their peers end.
class StillSupervisor : public SupervisedHosts, public ::testing::WithParamInterface<int> {};

TEST_P(StillSupervisor, ComesBackAsASpare) {
  const std::string options =
      "--training.steps=150 --training.global_batch_size=12 --training.micro_batch_size=1 --checkpoint.interval=10 "
      "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  const pid_t supervisor = only_child_of(supervisors_[static_cast<std::size_t>(GetParam())]->pid());
  signal_process(supervisor, SIGSTOP);
  EXPECT_TRUE(comes_true(30, [&] { return attempts().size() == 2; }));
  EXPECT_TRUE(reaches(40));
  signal_process(supervisor, SIGCONT);
  signal_process(parent_of(supervisor), SIGCONT);  // nsenter stops itself when its child stands still
  for (int host = 0; host < hosts.count(); ++host) {
    const ProgramResult end = end_of(host);
    EXPECT_EQ(end.code, 0) << end.err;
  }
  EXPECT_TRUE(is_reference());
  EXPECT_EQ(attempts().size(), 2u);
}
INSTANTIATE_TEST_SUITE_P(CoordinatorAndMember, StillSupervisor, ::testing::Values(0, 1));

}  // namespace
}  // namespace octet::testing
