// `octet launch --hosts ... --supervise` on several hosts (support/hosts.h): one supervisor on each, which agree on what runs
// where and go on after any fault. Every run that keeps its mesh must end with the bits of a run on one host that nobody
// disturbed.
#include <csignal>

#include "support/slow_process.h"
#include "support/supervised_hosts.h"

namespace octet::testing {
namespace {

class SuperviseHosts : public SupervisedHosts {
 protected:
  // Kills a rank in the first attempt, and again in the second one. Returns whether both came.
  bool kill_in_two_attempts(int rank) const {
    pid_t victim = -1, next = -1;
    for (const std::size_t attempt : {1, 2}) {
      const bool began = comes_true(60, [&] {
        next = run_.pid_of_rank(rank);
        return next > 0 && next != victim && attempts().size() == attempt;
      });
      if (!began) return false;
      signal_process(victim = next, SIGKILL);
    }
    return true;
  }
  // The supervisors of these hosts end with 0, and their run is the undisturbed one.
  void expect_reference_from(const std::vector<int>& hosts) {
    for (const int host : hosts) {
      const ProgramResult result = end_of(host);
      EXPECT_EQ(result.code, 0) << result.err;
    }
    EXPECT_TRUE(is_reference());
  }
};

const std::string kRun =
    "--training.steps=60 --training.global_batch_size=12 --training.micro_batch_size=1 --checkpoint.interval=10 ";

TEST_F(SuperviseHosts, TwoHostsTrainTheRunOfOne) {
  const std::string options = kRun + "--training.global_batch_size=8 --parallel.shard=4 ";
  make_reference(4, options);
  const Hosts hosts(2);
  start(hosts, 2, "", options);
  expect_reference_from({0, 1});
  ASSERT_EQ(attempts().size(), 1u);
  EXPECT_EQ(attempts()[0]["nodes"], Json({"host0", "host1"}));
  EXPECT_EQ(attempts()[0]["ranks"], 4);
  EXPECT_TRUE(says(node_log(0), "node0 (host0) coordinates 2 hosts"));
  EXPECT_TRUE(says(node_log(1), "node1 follows node0"));
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00003.log"), "==== attempt 1 ===="));
  const auto mode = std::filesystem::status(run_ / "out/.token").permissions();
  EXPECT_EQ(mode, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

// The hosts of this test share all disks.
TEST_F(SuperviseHosts, ALocalDirOnASharedDiskIsRefused) {
  const Hosts hosts(2);
  start(hosts, 1, "", kRun + "--parallel.shard=2 --checkpoint.local_dir=disk ");
  for (const int host : {0, 1}) EXPECT_EQ(end_of(host).code, 2);
  // The rank that notices first says so; the other may be ended before it can.
  const std::string log = read_file(run_ / "out/logs/rank-00000.log") + read_file(run_ / "out/logs/rank-00001.log");
  EXPECT_TRUE(says(log, "checkpoint.local_dir = disk: ")) << log;
  EXPECT_TRUE(says(log, "see the same files there; it must be on a disk that each host has for itself")) << log;
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/checkpoints/step-00000010"));
}

// Each host of these tests has a disk of its own in the place of `disk`.
class LocalDisks : public SuperviseHosts {
 protected:
  void SetUp() override {
    SuperviseHosts::SetUp();
    for (const char* folder : {"disk", "disk-0", "disk-1"}) std::filesystem::create_directories(run_ / folder);
  }
  std::string faults_on(int host) const override {
    return concat("unshare -m sh -c 'mount --bind disk-", swapped_ ? 1 - host : host, " disk && exec \"$0\" \"$@\"' ");
  }
  bool swapped_ = false;
};

// The disks hold newer steps than the run folder. A start that cannot use them ends, whether hosts are missing or in another
// order. After a start that can, a lost host does not end the job, which shrinks without a question.
TEST_F(LocalDisks, APersonIsAskedAndASupervisorGoesOn) {
  const std::string options =
      kRun + "--parallel.shard=-1 --checkpoint.interval=0 --checkpoint.memory_every=2 --checkpoint.local_dir=disk ";
  const auto copies_on = [&](int disk) {
    std::size_t lists = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run_ / concat("disk-", disk)))
      lists += entry.path().extension() == ".json";
    return lists;
  };
  {
    const Hosts hosts(2);
    start(hosts, 1, "", options + "--training.steps=100000 ");
    ASSERT_TRUE(comes_true(60, [&] { return copies_on(0) == 2 && copies_on(1) == 2; }));
    for (const int host : {0, 1}) hosts.power_off(host);
    for (const int host : {0, 1}) end_of(host);
  }
  {
    const Hosts hosts(1);
    start(hosts, 1, "", options);
    const ProgramResult result = end_of(0);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_TRUE(says(result.err, "start with 2 ranks, not 1;")) << result.err;
  }
  {
    swapped_ = true;
    const Hosts hosts(2);
    start(hosts, 1, "", options);
    for (const int host : {0, 1}) EXPECT_EQ(end_of(host).code, 2);
    const std::string log = read_file(run_ / "out/logs/rank-00000.log");
    EXPECT_TRUE(says(log, "start with the hosts in the order that they had before;")) << log;
    swapped_ = false;
  }
  const Hosts hosts(2);
  start(hosts, 1, "--min-hosts 1", options + "--training.steps=100000 ");
  ASSERT_TRUE(comes_true(60, [&] { return newest_attempt().value("from", "") == "local disk"; }));
  hosts.power_off(1);
  end_of(1);
  EXPECT_TRUE(
      comes_true(60, [&] { return newest_attempt()["ranks"] == 1 && newest_attempt()["seconds"].contains("first_step"); }));
  signal_process(only_child_of(supervisors_[0]->pid()), SIGTERM);
  const ProgramResult result = end_of(0);
  EXPECT_EQ(result.code, 75) << result.err;
}

// The pods of a Kubernetes Indexed Job know their index, and their own names may not be in the DNS yet.
TEST_F(SuperviseHosts, PodsOfAnIndexedJob) {
  const std::string options = kRun + "--training.steps=12 --parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(2);
  variables_ = [](int host) { return concat("JOB_COMPLETION_INDEX=", host); };
  start(hosts, 1, "", options + "--comm.interface=10.91.0.0/16 ", "10.91.0.[1-2]");
  expect_reference_from({0, 1});
}

// A PyTorchJob tells its pods the name of the first one alone. The ranks must not take the pods' RANK for theirs.
TEST_F(SuperviseHosts, PodsOfAPyTorchJob) {
  const std::string options = kRun + "--training.steps=12 --training.global_batch_size=8 --parallel.shard=4 ";
  make_reference(4, options);
  const Hosts hosts(2);
  variables_ = [](int host) {
    return concat("PET_NNODES=2 PET_NODE_RANK=", host, " RANK=", host,
                  " WORLD_SIZE=2 MASTER_PORT=23456 MASTER_ADDR=", Hosts::address(0));
  };
  start(hosts, 2, "", options, "auto");
  expect_reference_from({0, 1});
  const ProgramResult bare = run_.run("train run.toml", concat("exec env ", variables_(1), " "));
  EXPECT_TRUE(refused(bare, 2, "WORLD_SIZE=2 is set, but LOCAL_RANK is not", "start `octet launch --hosts auto -n auto"));
}

TEST_F(SuperviseHosts, AKilledRankOfAnotherHost) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(2);
  start(hosts, 1, "", options);
  // On a busy machine training is far ahead of a checkpoint that is being written.
  ASSERT_TRUE(comes_true(60, [&] { return std::filesystem::exists(run_ / "out/checkpoints/step-00000010"); }));
  ASSERT_TRUE(reaches(12));
  signal_process(run_.pid_of_rank(1), SIGKILL);
  for (int host = 0; host < 2; ++host) EXPECT_EQ(end_of(host).code, 0);
  EXPECT_TRUE(is_reference());
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["code"], 128 + SIGKILL);
  EXPECT_EQ(attempts()[0]["what"], "rank 1 was killed by signal 9 (SIGKILL)");
  EXPECT_GE(attempts()[1]["from_step"], 10);
}

// A rank that stands still on another host: its page reaches the coordinator, and the request for stacks reaches it.
TEST_F(SuperviseHosts, ARankThatStandsStillOnAnotherHost) {
  const std::string options = kRun + "--parallel.shard=4 --training.global_batch_size=8 ";
  make_reference(4, options);
  const Hosts hosts(2);
  start(hosts, 2, "", options + "--comm.stall_s=2 ");
  ASSERT_TRUE(reaches(8));
  signal_process(run_.pid_of_rank(3), SIGSTOP);
  for (int host = 0; host < 2; ++host) EXPECT_EQ(end_of(host).code, 0);
  EXPECT_TRUE(is_reference());
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["code"], 80);
  EXPECT_TRUE(says(attempts()[0]["what"], "; rank 3 is frozen and holds up the others; rank 3: ")) << attempts()[0]["what"];
  EXPECT_TRUE(says(attempts()[0]["what"], "; rank 3 is on node1 (host1)")) << attempts()[0]["what"];
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00002.log"), "stack of thread "));
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00003.log"), "): T"));
}

// The host that runs rank 1 loses power. Nobody hears of it but by its silence.
TEST_F(SuperviseHosts, ASpareTakesThePlaceOfALostHost) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  hosts.power_off(1);
  const ProgramResult first = end_of(0);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(end_of(2).code, 0);
  EXPECT_TRUE(is_reference());
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["nodes"], Json({"host0", "host1"}));
  EXPECT_EQ(attempts()[0]["what"], "node1 (host1) has been silent for 1 s");
  EXPECT_EQ(attempts()[0]["code"], 78);
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host0", "host2"}));
  EXPECT_TRUE(says(first.err, "attempt 2 trains from step ")) << first.err;
}

// Both hosts are well, and the coordinator reaches both. Neither of the first two attempts gets as far as a step.
TEST_F(SuperviseHosts, ASpareTakesThePlaceOfOneEndOfABrokenLink) {
  const std::string options = kRun + "--parallel.shard=3 --training.global_batch_size=6 ";
  make_reference(3, options);
  const Hosts hosts(4);
  hosts.cut(1, 2);
  hosts.cut(2, 1);
  start(hosts, 1, "--spares 1", options);
  for (int host = 0; host < 4; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_TRUE(is_reference());
  ASSERT_EQ(attempts().size(), 3u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(attempts()[i]["nodes"], Json({"host0", "host1", "host2"}));
    EXPECT_EQ(attempts()[i]["code"], 78);
    EXPECT_TRUE(says(attempts()[i]["what"], " (host1)") && says(attempts()[i]["what"], " (host2)") &&
                says(attempts()[i]["what"], " cannot reach each other"))
        << attempts()[i]["what"];
  }
  EXPECT_EQ(attempts()[2]["nodes"], Json({"host0", "host1", "host3"}));
}

// There is no spare, but --min-hosts allows the run to go on without one of the two. That host stays ready, which is no reason
// to start again with the broken link.
TEST_F(SuperviseHosts, OneEndOfABrokenLinkIsLeftOutIfThereIsNoSpare) {
  const Hosts hosts(3);
  hosts.cut(1, 2);
  hosts.cut(2, 1);
  start(hosts, 1, R"(--min-hosts 2 --on-exclude 'echo "$OCTET_NODE|$OCTET_CODE" >>excluded')", kRun + "--parallel.shard=-1 ");
  for (int host = 0; host < 3; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << result.err;
  }
  const std::vector<Json> all = attempts();
  ASSERT_EQ(all.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i]["nodes"], Json({"host0", "host1", "host2"}));
    EXPECT_EQ(all[i]["code"], 78);
  }
  EXPECT_TRUE(says(all[0]["next"], "restarts"));
  EXPECT_EQ(all[1]["next"], "restarts in 5 s, without node2 (host2), which is to blame for two of the last three attempts");
  EXPECT_EQ(all[2]["nodes"], Json({"host0", "host1"}));
  EXPECT_EQ(step(), 60);
  EXPECT_EQ(read_file(run_ / "excluded"), "host2|78\n");
  EXPECT_TRUE(says(node_log(0),
                   "node2 (host2) no longer runs ranks, because it is to blame for two of the last three "
                   "attempts; to take it back, start its supervisor again"))
      << node_log(0);
}

// A host computes slowly, until a spare is to take its place. All ranks save before that, so that no step is done twice. The
// model is large enough that a step is mostly computation, because a rank that stands still while it waits is not slow.
TEST_F(SuperviseHosts, ASpareTakesThePlaceOfASlowHost) {
  const std::string options = kRun +
                              "--training.steps=150 --parallel.shard=2 --metrics.log_freq=2 --health.straggler=0.4 "
                              "--model.hidden_size=256 --model.intermediate_size=512 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1 --exclude-stragglers 7", options);
  ASSERT_TRUE(reaches(2));
  {
    const SlowProcess slow(run_.pid_of_rank(1));
    ASSERT_TRUE(comes_true(120, [&] { return node_log(0).find("; saves, and a spare takes its place") != std::string::npos; }));
  }
  expect_reference_from({0, 1, 2});
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_TRUE(says(attempts()[0]["next"], "restarts without node1 (host1), because rank 1 computes ")) << attempts()[0]["next"];
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host0", "host2"}));
  EXPECT_EQ(attempts()[1]["from_step"], attempts()[0]["last_step"]);
}

// The coordinator's host loses power, with rank 0 and the lock of the run folder. The next coordinator goes on from this run's
// checkpoint, although the first attempt was told to leave the old run's alone.
TEST_F(SuperviseHosts, AnotherNodeCoordinatesAfterTheCoordinator) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  ASSERT_EQ(run_.train("--training.steps=4").code, 0);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options + "--resume none --run.set_aside=true ");
  // On a busy machine training is far ahead of a checkpoint that is being written.
  ASSERT_TRUE(comes_true(60, [&] { return std::filesystem::exists(run_ / "out/checkpoints/step-00000010"); }));
  ASSERT_TRUE(reaches(12));
  hosts.power_off(0);
  expect_reference_from({1, 2});
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[1]["coordinator"]["node"], 1);
  EXPECT_GE(attempts()[1]["from_step"], 10);
  const std::filesystem::directory_iterator set_aside(run_ / "out/history");
  EXPECT_EQ(std::distance(begin(set_aside), end(set_aside)), 1) << "the old run alone";
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host2", "host1"})) << "host1 keeps its rank";
  EXPECT_TRUE(says(node_log(1), "node0 (10.91.0.1), which coordinates, has been silent for 1 s")) << node_log(1);
}

// Nothing is on the disk. What the lost host had in memory is also in that of another one, each time.
TEST_F(SuperviseHosts, ALostHostCostsTheStepsSinceItsLastSnapshot) {
  const std::string options = kRun + "--parallel.shard=2 --checkpoint.interval=0 --checkpoint.memory_every=5 ";
  make_reference(2, options);
  const Hosts hosts(4);
  start(hosts, 1, "--spares 2", options);
  ASSERT_TRUE(reaches(12));
  hosts.power_off(1);
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 2 && step() >= 27; }));
  hosts.power_off(0);  // the coordinator
  expect_reference_from({2, 3});
  const std::vector<Json> all = attempts();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1]["nodes"], Json({"host0", "host2"}));
  EXPECT_GE(all[1]["from_step"], 5);
  EXPECT_EQ(all[2]["nodes"], Json({"host3", "host2"})) << "host2 keeps its rank";
  EXPECT_GE(all[2]["from_step"], 20);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(says(read_file(run_ / concat("out/logs/rank-0000", rank, ".log")), "==== attempt 3 ===="));
  }
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00000.log"),
                   concat("resuming after step ", all[2]["from_step"].get<int>(), " from memory")));
}

// Two hosts hold the same state. Only rank 0 sends it to the other, because its snapshot stands for metrics that are on the disk.
TEST_F(SuperviseHosts, AnotherReplicaGivesTheStateOfALostHost) {
  const std::string options =
      kRun + "--parallel.replicate=2 --training.global_batch_size=8 --checkpoint.interval=0 --checkpoint.memory_every=5 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  hosts.power_off(0);
  expect_reference_from({1, 2});
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host2", "host1"}));
  EXPECT_GE(attempts()[1]["from_step"], 5);
}

// A scheduler starts the coordinator's supervisor again at once. It knows nothing of the run, but the others do: it must not
// begin the run anew, as the command says.
TEST_F(SuperviseHosts, ACoordinatorThatIsStartedAgainGoesOn) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  ASSERT_EQ(run_.train("--training.steps=4").code, 0);
  const Hosts hosts(2);
  start(hosts, 1, "", options + "--resume none --run.set_aside=true ");
  // On a busy machine training is far ahead of a checkpoint that is being written.
  ASSERT_TRUE(comes_true(60, [&] { return std::filesystem::exists(run_ / "out/checkpoints/step-00000010"); }));
  signal_process(only_child_of(supervisors_[0]->pid()), SIGKILL);
  EXPECT_EQ(end_of(0).code, 128 + SIGKILL);
  start_on(hosts, 0);
  expect_reference_from({0, 1});
  const std::vector<Json> all = attempts();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["code"], 78);
  EXPECT_TRUE(says(all[0]["what"], ", which coordinated, has been started again")) << all[0]["what"];
  EXPECT_EQ(all[1]["job"], all[0]["job"]);
  EXPECT_GE(all[1]["from_step"], 10);
  const std::filesystem::directory_iterator set_aside(run_ / "out/history");
  EXPECT_EQ(std::distance(begin(set_aside), end(set_aside)), 1) << "the old run alone";
}

// The coordinator's host loses power when it has just begun an attempt, of which nobody has heard.
TEST_F(SuperviseHosts, AnAttemptThatNobodyHeardOf) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  hosts.power_off(0);
  Json unheard = json_of(read_file(run_ / "out/attempts/00000001.json"));
  unheard["attempt"] = 2;
  write_text(run_ / "out/attempts/00000002.json", unheard.dump());
  expect_reference_from({1, 2});
  const std::vector<Json> all = attempts();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_TRUE(says(all[1]["what"], "node0 (10.91.0.1), which coordinated, has been silent for 1 s")) << all[1];
  EXPECT_EQ(all[2]["nodes"], Json({"host2", "host1"})) << "host1 keeps its rank";
}

// A host that stood still is no longer the coordinator when it goes on, and must not disturb the run.
TEST_F(SuperviseHosts, AFrozenCoordinatorComesBackAsASpare) {
  const std::string options = kRun + "--training.steps=150 --parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  hosts.freeze(0);
  ASSERT_TRUE(comes_true(30, [&] { return attempts().size() == 2; }));
  ASSERT_TRUE(reaches(40));
  hosts.thaw(0);
  for (int host = 0; host < 3; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << host << "\n" << result.err;
  }
  EXPECT_TRUE(is_reference());
  EXPECT_EQ(attempts().back()["coordinator"]["node"], 1);
  EXPECT_TRUE(says(node_log(0), "node0 follows node1")) << node_log(0);
}

// The supervisors of the other hosts hear from their ranks that a peer is gone, before anybody sees a stall.
TEST_F(SuperviseHosts, ARankThatFallsSilentIsNamed) {
  const std::string options = kRun + "--parallel.shard=3 ";
  make_reference(3, options);
  const Hosts hosts(3);
  start(hosts, 1, "", options);
  ASSERT_TRUE(reaches(12));
  signal_process(run_.pid_of_rank(1), SIGSTOP);
  expect_reference_from({0, 1, 2});
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[0]["code"], 78);
  EXPECT_TRUE(says(attempts()[0]["what"], "rank 1 ")) << attempts()[0]["what"];
  EXPECT_TRUE(says(attempts()[0]["what"], " has been silent for 10 s")) << attempts()[0]["what"];
}

// As when a lease has expired. The coordinator can give its rank no port, waits, and comes back when it has its address again.
TEST_F(SuperviseHosts, AnAddressThatVanishesDoesNotEndTheSupervisor) {
  const Hosts hosts(2);
  start(hosts, 1, "--min-hosts 1", kRun + "--training.steps=300 --parallel.shard=-1 ");
  ASSERT_TRUE(reaches(12));
  const std::string address = concat("ip address add ", Hosts::address(0), "/24 dev eth0"), on_host_0 = hosts.on(0);
  ASSERT_EQ(std::system(concat(on_host_0, "ip address flush dev eth0").c_str()), 0);
  EXPECT_TRUE(comes_true(30, [&] { return says(node_log(0), "this host runs no ranks until it can"); })) << node_log(0);
  ASSERT_EQ(std::system(concat(on_host_0, address).c_str()), 0);
  for (const int host : {0, 1}) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << host << "\n" << result.err;
  }
}

// If the coordinator is the host that is lost, the other one writes down how the run ended. Job scripts ask for the code on
// machines that cannot see the supervisors.
TEST_F(SuperviseHosts, WaitsForTooFewHostsAndThenEnds) {
  for (const int lost : {1, 0}) {
    std::filesystem::remove_all(run_ / "out");
    const Hosts hosts(2);
    start(hosts, 1, "", kRun + "--training.steps=100000 --parallel.shard=2 --comm.join_timeout_s=3 ");
    ASSERT_TRUE(reaches(3));
    hosts.power_off(lost);
    const ProgramResult result = end_of(1 - lost);
    EXPECT_EQ(result.code, 78) << result.err;
    EXPECT_TRUE(says(result.err, concat("1 of 2 hosts are here after 3 s, and 2 are needed; missing: node", lost))) << result.err;
    EXPECT_EQ(run_.run("status out --code").code, 78) << run_.run("status out").out;
    EXPECT_EQ(attempts().back()["next"], "stops: too few hosts are here");
    end_of(lost);
  }
}

// A scheduler that ends the job asks all hosts. The ranks save.
TEST_F(SuperviseHosts, EndsWhenAllAreAsked) {
  const Hosts hosts(2);
  start(hosts, 1, "", kRun + "--training.steps=100000 --checkpoint.interval=0 --parallel.shard=2 ");
  ASSERT_TRUE(reaches(3));
  for (const auto& supervisor : supervisors_) signal_process(only_child_of(supervisor->pid()), SIGTERM);
  for (int host = 0; host < 2; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 75) << result.err;
  }
  EXPECT_EQ(attempts().size(), 1u);
  EXPECT_FALSE(last_checkpoint(run_ / "out").empty());
}

// One host is asked, as when its pod is moved. The others go on with the spare.
TEST_F(SuperviseHosts, GoesOnWithoutAHostThatIsAskedToLeave) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(3));
  signal_process(only_child_of(supervisors_[1]->pid()), SIGTERM);
  EXPECT_EQ(end_of(1).code, 75);
  expect_reference_from({0, 2});
  EXPECT_EQ(attempts()[0]["next"], "restarts without the hosts that were asked to leave");
}

// The coordinator's host alone is asked to leave, in the pause after a rank was killed for the second time.
TEST_F(SuperviseHosts, GoesOnWithoutACoordinatorThatIsAskedBetweenAttempts) {
  const std::string options = kRun + "--parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(kill_in_two_attempts(1));
  ASSERT_TRUE(comes_true(60, [&] { return attempts().back()["next"] == "restarts in 5 s"; }));
  signal_process(only_child_of(supervisors_[0]->pid()), SIGTERM);
  EXPECT_EQ(end_of(0).code, 75);
  expect_reference_from({1, 2});
  ASSERT_EQ(attempts().size(), 3u);
  EXPECT_EQ(attempts()[2]["coordinator"]["node"], 1);
  EXPECT_EQ(attempts()[2]["nodes"], Json({"host2", "host1"}));
}

// Host 0 coordinates, and runs no ranks any more, because they were killed twice.
TEST_F(SuperviseHosts, GoesOnWithoutACoordinatorThatRunsNoRanks) {
  const std::string options = kRun + "--training.steps=400 ";
  make_reference(1, options);
  const Hosts hosts(2);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(kill_in_two_attempts(0));
  ASSERT_TRUE(comes_true(60, [&] { return says(node_log(0), "attempt 3 trains from step "); }));
  EXPECT_EQ(attempts()[2]["nodes"], Json({"host1"}));
  signal_process(only_child_of(supervisors_[0]->pid()), SIGTERM);
  EXPECT_EQ(end_of(0).code, 75);
  expect_reference_from({1});
  EXPECT_EQ(attempts()[2]["next"], "restarts without the hosts that were asked to leave");
}

// --min-hosts allows the run to go on without a host, but its mesh does not.
TEST_F(SuperviseHosts, EndsWithoutAHostThatItsMeshNeeds) {
  const Hosts hosts(2);
  start(hosts, 1, "--min-hosts 1", kRun + "--training.steps=100000 --parallel.tensor=2 ");
  ASSERT_TRUE(reaches(3));
  signal_process(only_child_of(supervisors_[1]->pid()), SIGTERM);
  for (int host = 0; host < 2; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 75) << result.err;
  }
  EXPECT_EQ(attempts().size(), 1u);
  EXPECT_EQ(run_.run("status out --code").code, 75);
}

TEST_F(SuperviseHosts, RefusesWhatCannotTakePart) {
  const Hosts hosts(2);
  const std::string tail = " -n 1 --supervise -- train run.toml ";
  const auto on = [&](int host, const std::string& arguments) { return run_.run(arguments, "exec " + hosts.on(host)); };
  EXPECT_TRUE(refused(on(0, "launch --hosts 10.91.0.7,10.91.0.8" + tail), 2, "--hosts 10.91.0.7,10.91.0.8: this machine, host0 (",
                      "is not in the list"));
  EXPECT_TRUE(refused(on(0, "launch --hosts auto" + tail), 2, "no scheduler tells the hosts of this job"));
  EXPECT_TRUE(refused(on(0, "launch --hosts host0,host0" + tail), 2, "host0 is there twice"));
  EXPECT_TRUE(refused(on(0, "launch --spares 2 --hosts " + hosts.list() + tail), 2,
                      "--spares 2: of 2 hosts at least one must run ranks"));
  EXPECT_EQ(on(0, "launch -n 1 --hosts " + hosts.list() + " -- train run.toml").code, 2) << "without --supervise";

  start(hosts, 1, "", kRun + "--training.steps=100000 --parallel.shard=2 ");
  ASSERT_TRUE(reaches(2));
  // A supervisor with another command, and one with another token.
  const ProgramResult second = on(1, concat("launch --hosts ", hosts.list(), tail, "--comm.join_timeout_s=2"));
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_TRUE(says(second.err, "node1 (10.91.0.2) cannot listen at 10.91.0.2 port ")) << second.err;
}

// A host whose rank crashes again leaves its place to the spare. What --on-exclude runs is told why; that it fails harms nobody.
TEST_F(SuperviseHosts, TellsWhichHostItExcludes) {
  const std::string options = kRun + "--training.steps=150 --parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(3);
  start(hosts, 1, R"(--spares 1 --on-exclude 'echo "$OCTET_NODE|$OCTET_CODE|$OCTET_REASON" >>excluded; exit 4')", options);
  ASSERT_TRUE(kill_in_two_attempts(1));
  expect_reference_from({0, 1, 2});
  ASSERT_EQ(attempts().size(), 3u);
  EXPECT_EQ(attempts()[2]["nodes"], Json({"host0", "host2"}));
  ASSERT_EQ(attempts()[2]["excluded"].size(), 1u) << attempts()[2];
  EXPECT_EQ(attempts()[2]["excluded"][0]["host"], "host1");
  EXPECT_EQ(attempts()[2]["excluded"][0]["why"],
            "to blame for two of the last three attempts: rank 1 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(read_file(run_ / "excluded"), "host1|137|rank 1 was killed by signal 9 (SIGKILL)\n");
  EXPECT_TRUE(says(node_log(0), "--on-exclude ended with code 4")) << node_log(0);
}

// `-n auto` gives a smaller number on a host that has lost a GPU.
TEST_F(SuperviseHosts, WarnsOfAHostWithOtherOptions) {
  const Hosts hosts(2);
  supervisors_.resize(2);
  for (const int host : {0, 1}) {
    command_ = concat("launch --hosts ", hosts.list(), " -n 1 --min-hosts ", 2 - host, " --supervise -- train run.toml ", kTimes,
                      kRun, "--parallel.shard=2 --training.steps=4");
    start_on(hosts, host);
  }
  for (const int host : {0, 1}) EXPECT_EQ(end_of(host).code, 0);
  EXPECT_TRUE(
      says(node_log(0), "warning: node1 (host1) was started with other options than node0 (host0): --spares 0 --min-hosts 1 "))
      << node_log(0);
}

TEST_F(SuperviseHosts, RefusesAHostWithAnotherNumberOfRanks) {
  const Hosts hosts(2);
  supervisors_.resize(2);
  for (const int host : {0, 1}) {
    command_ = concat("launch --hosts ", hosts.list(), " -n ", 2 - host,
                      " --supervise -- train run.toml --comm.join_timeout_s=5 --training.global_batch_size=8");
    start_on(hosts, host);
  }
  const ProgramResult other = end_of(1);
  EXPECT_EQ(other.code, 78) << other.err;
  EXPECT_TRUE(says(other.err, "node1 was started with 1 ranks instead of 2")) << other.err;
  EXPECT_EQ(end_of(0).code, 78);
}

}  // namespace
}  // namespace octet::testing
