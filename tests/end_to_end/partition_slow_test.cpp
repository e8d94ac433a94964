// A run whose hosts lose their cables. One part of the network goes on, the others do not disturb it, and a host whose cable is
// back takes part again.
#include <csignal>

#include "octet/app/lock_watch.h"
#include "octet/base/clock.h"
#include "support/supervised_hosts.h"

namespace octet::testing {
namespace {

class Partition : public SupervisedHosts {
 protected:
  bool comes_to_say(int node, const std::string& words) const {
    return comes_true(60, [&] { return says(node_log(node), words); });
  }
  void ask_to_end(const std::vector<int>& hosts) const {
    for (const int host : hosts) signal_process(only_child_of(supervisors_[static_cast<std::size_t>(host)]->pid()), SIGTERM);
  }
  void expect_code(const std::vector<int>& hosts, int code) {
    for (const int host : hosts) {
      const ProgramResult result = end_of(host);
      EXPECT_EQ(result.code, code) << host << "\n" << result.err;
    }
  }
};

const std::string kCabledRun = "--training.global_batch_size=12 --training.micro_batch_size=1 --checkpoint.interval=10 ";
const std::string kEndlessCabledRun = kCabledRun + "--training.steps=1000000 --lr_scheduler.decay=constant ";

// One host of three could go on alone, but the two others do.
TEST_F(Partition, ACutFollowerEndsWhileTheOthersGoOn) {
  const Hosts hosts(3);
  start(hosts, 1, "--min-hosts 1", kEndlessCabledRun + "--parallel.replicate=3 --comm.join_timeout_s=6 ");
  ASSERT_TRUE(reaches(12));
  hosts.unplug(2);
  expect_code({2}, 78);
  const std::vector<Json> all = attempts();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["nodes"], Json({"host0", "host1"}));
  EXPECT_TRUE(all[1]["code"].is_null());
  ASSERT_TRUE(reaches(step() + 10));
  ask_to_end({0, 1});
  expect_code({0, 1}, 75);
}

// The coordinator is alone, and could go on alone as well. When its cable is back, the run has all of its ranks again.
TEST_F(Partition, ACutCoordinatorComesBack) {
  const Hosts hosts(3);
  start(hosts, 1, "--min-hosts 1", kEndlessCabledRun + "--parallel.replicate=3 ");
  ASSERT_TRUE(reaches(12));
  hosts.unplug(0);
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 2; }));
  EXPECT_EQ(attempts()[1]["coordinator"]["node"], 1);
  EXPECT_EQ(attempts()[1]["nodes"].size(), 2u);
  ASSERT_TRUE(reaches(30));
  hosts.plug(0);
  ASSERT_TRUE(comes_to_say(0, "node0 follows node1"));
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 3; }));
  EXPECT_EQ(attempts()[1]["next"], "restarts with more hosts");
  EXPECT_EQ(attempts()[2]["nodes"].size(), 3u);
  ASSERT_TRUE(reaches(step() + 10));
  ask_to_end({0, 1, 2});
  expect_code({0, 1, 2}, 75);
}

// A spare has taken the place of the coordinator, which takes the place of another host when it is back.
TEST_F(Partition, ACoordinatorThatComesBackIsASpare) {
  const std::string options = kEndlessCabledRun + "--parallel.shard=2 ";
  const Hosts hosts(3);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  hosts.unplug(0);
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 2; }));
  sleep_s(4);  // host 0 has searched for the others and found nobody
  hosts.plug(0);
  ASSERT_TRUE(comes_to_say(0, "node0 follows node1"));
  hosts.power_off(2);
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 3; }));
  EXPECT_EQ(attempts()[2]["coordinator"]["node"], 1);
  EXPECT_EQ(attempts()[2]["nodes"], Json({"host0", "host1"}));
  ASSERT_TRUE(reaches(step() + 10));
  ask_to_end({0, 1});
  expect_code({0, 1}, 75);
  const std::string last = last_checkpoint(run_ / "out").filename().string().substr(5);
  make_reference(2, concat(options, "--until ", std::stoll(last)));
  EXPECT_TRUE(is_reference());
}

// Neither of two hosts can go on without the other. Both wait, and the cable comes back.
TEST_F(Partition, HostsThatWaitForEachOtherFindEachOther) {
  const std::string options = kCabledRun + "--training.steps=60 --parallel.shard=2 ";
  make_reference(2, options);
  const Hosts hosts(2);
  start(hosts, 1, "", options);
  ASSERT_TRUE(reaches(12));
  hosts.unplug(0);
  ASSERT_TRUE(comes_to_say(1, "node1 (host1) coordinates 2 hosts"));
  ASSERT_TRUE(comes_to_say(0, "attempt 1 ended with code 78"));
  hosts.plug(0);
  expect_code({0, 1}, 0);
  EXPECT_TRUE(is_reference());
  EXPECT_EQ(attempts().size(), 2u);
}

// The run does without a spare that is cut off, and does not end when it is gone and the coordinator is lost.
TEST_F(Partition, ACutSpareEndsNoRun) {
  const Hosts hosts(4);
  start(hosts, 1, "--spares 2 --min-hosts 1", kEndlessCabledRun + "--parallel.shard=2 --comm.join_timeout_s=6 ");
  ASSERT_TRUE(reaches(3));
  hosts.unplug(3);
  expect_code({3}, 78);
  ASSERT_EQ(attempts().size(), 1u);
  EXPECT_TRUE(attempts()[0]["code"].is_null());
  hosts.power_off(0);
  ASSERT_TRUE(comes_true(60, [&] { return attempts().size() == 2; }));
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host2", "host1"}));
  ASSERT_TRUE(reaches(step() + 10));
  ask_to_end({1, 2});
  expect_code({1, 2}, 75);
}

// The only host with ranks coordinates. The spare reads that it was asked to leave, and that nobody holds the lock.
TEST_F(Partition, ASpareTakesThePlaceOfTheOnlyHostThatIsAskedToLeave) {
  const std::string options = kCabledRun + "--training.steps=600 --comm.join_timeout_s=120 ";
  make_reference(1, options);
  const Hosts hosts(2);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  const Clock::time_point asked = Clock::now();
  signal_process(only_child_of(supervisors_[0]->pid()), SIGTERM);
  EXPECT_EQ(end_of(0).code, 75);
  expect_code({1}, 0);
  EXPECT_TRUE(is_reference());
  EXPECT_LT(seconds_since(asked), app::LockWatch::kSilenceS);
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host1"}));
}

// The spare cannot know whether the only host with ranks is lost or trains where it cannot be reached. It waits until the counter
// in run.lock has stood still, and no longer.
TEST_F(Partition, ASpareTakesThePlaceOfTheOnlyHostThatIsLost) {
  const std::string options = kCabledRun + "--training.steps=600 --comm.join_timeout_s=120 ";
  make_reference(1, options);
  const Hosts hosts(2);
  start(hosts, 1, "--spares 1", options);
  ASSERT_TRUE(reaches(12));
  const Clock::time_point lost = Clock::now();
  hosts.power_off(0);
  expect_code({1}, 0);
  EXPECT_TRUE(is_reference());
  EXPECT_LT(seconds_since(lost), 120);
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[1]["nodes"], Json({"host1"}));
}

}  // namespace
}  // namespace octet::testing
