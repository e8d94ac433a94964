#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "checkpoint/snapshot_ranks.h"
#include "octet/checkpoint/replica_client.h"
#include "octet/checkpoint/replica_server.h"
#include "support/errors.h"

namespace octet::checkpoint {
namespace {

using Json = nlohmann::json;
using testing::contains;
using testing::error_of;
using testing::run_ranks;

constexpr const char* kVersion = "octet 1";

// Three ranks, each on a host of its own. The next host keeps the replicas of each.
class ReplicasTest : public ::testing::Test {
 protected:
  struct Host {
    std::shared_ptr<SnapshotMemory> memory;
    std::unique_ptr<ReplicaServer> server;
  };

  ReplicasTest() {
    for (int host = 0; host < kSnapshotRanks; ++host) start(host);
  }

  // A new machine, or an old one that was switched off and on.
  void start(int host) {
    Host& machine = hosts_[static_cast<std::size_t>(host)];
    machine.server.reset();
    machine.memory = std::make_shared<SnapshotMemory>(1);
    machine.server = std::make_unique<ReplicaServer>(
        ReplicaServer::Options{.host = "127.0.0.1", .token = token_, .version = kVersion, .name = concat("node", host)});
    machine.server->offer(machine.memory);
  }
  std::string place(int host) const {
    return concat("127.0.0.1:", hosts_[static_cast<std::size_t>(host % kSnapshotRanks)].server->port());
  }

  std::unique_ptr<ReplicaClient> client(int rank, std::vector<int> same = {}) const {
    if (same.empty()) same = {rank};
    return std::make_unique<ReplicaClient>(
        ReplicaClient::Options{.places = {.to = place(rank + keeper_), .from = {place(rank + 1), place(rank + 2)}},
                               .token = token_,
                               .claim = {static_cast<std::uint64_t>(rank), kSnapshotRanks, kVersion},
                               .ranks = std::move(same)});
  }
  Snapshots process(int rank, std::vector<int> same = {}) const {
    return Snapshots({.slots = slots_of(*hosts_[static_cast<std::size_t>(rank)].memory, 0),
                      .rank = rank,
                      .size = kSnapshotRanks,
                      .attempt = attempt_,
                      .replicas = client(rank, std::move(same))});
  }

  void run(const std::vector<std::int64_t>& steps, const std::string& timeline = "a", std::int64_t from = 0) {
    run_ranks(kSnapshotRanks, [&](int rank) {
      Memory memory;
      Snapshots snapshots = process(rank);
      snapshots.go_on(timeline, from);
      for (const std::int64_t step : steps) save_step(snapshots, memory, rank, step);
    });
  }

  // The step that all ranks load, with the right values; -1: none. Rank r holds the state of states[r].
  std::int64_t newest(const std::string& timeline = "a", const std::vector<int>& states = {0, 1, 2},
                      const std::vector<std::vector<int>>& same = {{0}, {1}, {2}}) {
    LosableStore store;
    std::vector<std::int64_t> steps(kSnapshotRanks, -1);
    warnings_.assign(kSnapshotRanks, "");
    run_ranks(kSnapshotRanks, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      Snapshots snapshots = process(rank, same[r]);
      const std::optional<Reader> reader = snapshots.newest(
          ranks_of(store, rank, kSnapshotRanks), timeline, [](auto...) { return true; },
          [&](std::string_view line) { warnings_[r] += line; });
      if (!reader) return;
      steps[r] = reader->step();
      expect_loads(*reader, states[r]);
    });
    for (const std::int64_t step : steps) EXPECT_EQ(step, steps[0]);
    return steps[0];
  }

  ReplicaStream connect(int host, comm::Claim claim) const {
    return ReplicaStream(comm::join({.host = "127.0.0.1",
                                     .port = hosts_[static_cast<std::size_t>(host)].server->port(),
                                     .token = token_,
                                     .claim = std::move(claim),
                                     .timeout_s = 5}));
  }

  std::int64_t attempt_ = 0;
  int keeper_ = 1;  // the host of rank r + keeper_ keeps the replicas of rank r
  comm::Token token_ = comm::Token::random();
  std::array<Host, kSnapshotRanks> hosts_;
  std::shared_ptr<SnapshotMemory> scratch_ = std::make_shared<SnapshotMemory>(1);
  std::vector<std::string> warnings_;
};

TEST_F(ReplicasTest, TheRunGoesOnFromMemoryAfterAnyHostWasLost) {
  EXPECT_EQ(newest(), -1);
  EXPECT_EQ(hosts_[1].server->bytes(), 0);
  std::int64_t last = 0;
  for (int lost = 0; lost < kSnapshotRanks; ++lost) {
    run({last + 1, last + 2, last + 3}, "a", last);
    EXPECT_GE(hosts_[1].server->bytes(), bytes_taken(slots_of(*hosts_[0].memory, 0))) << "two replicas of rank 0's snapshots";
    last += 3;
    start(lost);
    EXPECT_EQ(newest("b"), -1);
    EXPECT_EQ(newest(), last) << "host " << lost;
    for (const std::string& warning : warnings_) EXPECT_EQ(warning, "");
    EXPECT_EQ(newest(), last) << "from its own memory now";
  }
  start(0);
  start(1);
  EXPECT_EQ(newest(), -1) << "rank 0's state was on these two hosts alone";
}

// The host before the lost one is behind: its replica of the last step had not arrived.
TEST_F(ReplicasTest, AReplicaThatIsOneSnapshotBehind) {
  run({1, 2});
  run_ranks(kSnapshotRanks, [&](int rank) {
    Memory memory;
    Snapshots snapshots({.slots = slots_of(*hosts_[static_cast<std::size_t>(rank)].memory, 0),
                         .rank = rank,
                         .size = kSnapshotRanks,
                         .replicas = rank == 1 ? nullptr : client(rank)});
    snapshots.go_on("a", 2);
    save_step(snapshots, memory, rank, 3);
  });
  EXPECT_EQ(newest(), 3);
  start(1);
  EXPECT_EQ(newest(), 2);
}

// A rank cannot take its snapshots for a while. The replicas of the others keep the step that all have.
TEST_F(ReplicasTest, FailuresOfOneRankKeepTheReplicasOfAll) {
  for (int lost = 0; lost < kSnapshotRanks; ++lost) {
    const std::int64_t last = 10 * lost + 2;
    run({last - 1, last}, "a", last - 2);
    save_together({last + 1, last + 2, last + 3}, {last + 1, last + 2, last + 3}, "a", last,
                  [&](int rank, std::function<void()> may_publish) {
                    return Snapshots({.slots = slots_of(*hosts_[static_cast<std::size_t>(rank)].memory, 0),
                                      .rank = rank,
                                      .size = kSnapshotRanks,
                                      .replicas = client(rank),
                                      .may_publish = std::move(may_publish)});
                  });
    start(lost);
    EXPECT_EQ(newest(), last) << "host " << lost;
  }
}

TEST_F(ReplicasTest, ADamagedReplicaGivesWayToTheOneBefore) {
  run({1, 2});
  // The same manifest as that of a good snapshot, but one byte of its data is wrong.
  Snapshots snapshots({.slots = slots_of(*scratch_, 0), .rank = 1, .size = kSnapshotRanks});
  {
    Memory memory;
    snapshots.go_on("a", 0);
    save_step(snapshots, memory, 1, 3);
  }
  snapshots.go_on("a", 3);  // waits
  const SnapshotSlot slot = scratch_->slots(0).front();
  std::string data = read_file(concat(kDescriptors, "/", slot.data));
  data.back() = static_cast<char>(data.back() ^ 1);
  client(1)->keep(std::as_bytes(std::span(data)), manifest_in(slot).value(), 2);
  for (const int rank : {0, 2}) {
    Memory memory;
    Snapshots others = process(rank);
    others.go_on("a", 2);
    save_step(others, memory, rank, 3);
  }
  start(1);
  EXPECT_EQ(newest(), 2);
  EXPECT_NE(warnings_[0].find("the snapshot of step 3 in memory cannot be used: rank 1: "), std::string::npos) << warnings_[0];
}

TEST_F(ReplicasTest, AReplicaReplacesADamagedSnapshot) {
  run({1, 2});
  for (const SnapshotSlot& slot : hosts_[1].memory->slots(0)) {
    if (manifest_in(slot).value().step == 2) flip_last_bit(slot);
  }
  EXPECT_EQ(newest(), 2);
  EXPECT_EQ(newest(), 2) << "from its own memory now";
}

// A rank is killed while it sends: what came before counts.
TEST_F(ReplicasTest, ATransferThatBreaksOff) {
  run({1, 2});
  {
    const std::vector<Replica> before = client(1)->find("a", false, [](auto) {});
    ASSERT_EQ(before.size(), 2u);
    Manifest manifest = before.front().manifest;
    manifest.step = 3;
    ReplicaStream stream = connect(2, {1, kSnapshotRanks, kVersion});
    stream.send(topic::kKeep, {{"rank", 1}, {"bytes", 5000}, {"manifest", to_json(manifest)}, {"stays", 2}});
    stream.answer(topic::kReady);
    stream.send_bytes(std::vector<std::byte>(4999));
  }
  const std::vector<Replica> after = client(1)->find("a", false, [](auto) {});
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after.front().manifest.step, 2);
  start(1);
  EXPECT_EQ(newest(), 2);
}

TEST_F(ReplicasTest, RollbacksAndWrongBitsLeaveNoReplica) {
  run({1, 2});
  run({2}, "b", 1);
  start(1);
  EXPECT_EQ(newest("a"), -1) << "each rank has overwritten its own";
  EXPECT_EQ(newest("b"), 2);
  run_ranks(kSnapshotRanks, [&](int rank) { process(rank).go_on("b", -1); });
  EXPECT_TRUE(client(1)->find("b", false, [](auto) {}).empty());
  EXPECT_EQ(newest("b"), -1);
}

// The hosts were put in another order, as when a spare takes the place of one.
TEST_F(ReplicasTest, WhatNoStateNeedsIsGivenBackWhenAnotherHostKeepsIt) {
  const auto kept_at = [&](int host) {
    std::vector<std::int64_t> steps;
    for (const Replica& replica : client(0)->find("a", false, [](std::string_view) {})) {
      if (replica.place == place(host)) steps.push_back(replica.manifest.step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  };
  run({1, 2});
  EXPECT_EQ(kept_at(1), (std::vector<std::int64_t>{1, 2}));
  keeper_ = 2;
  run({3}, "a", 2);
  EXPECT_EQ(kept_at(1), (std::vector<std::int64_t>{1, 2})) << "all ranks still have step 2";
  run({4}, "a", 3);
  EXPECT_EQ(kept_at(1), std::vector<std::int64_t>());
  EXPECT_EQ(kept_at(2), (std::vector<std::int64_t>{3, 4}));
  start(0);
  EXPECT_EQ(newest(), 4);
}

// The run went back to a checkpoint, and the hosts were put in another order.
TEST_F(ReplicasTest, WhatAnAbandonedTimelineHasLeftIsGivenBack) {
  const auto timelines_at = [&](int host) {
    std::set<std::string> timelines;
    for (const char* timeline : {"a", "b"}) {
      for (const Replica& replica : client(0)->find(timeline, false, [](std::string_view) {})) {
        if (replica.place == place(host)) timelines.insert(timeline);
      }
    }
    return timelines;
  };
  run({1, 2});
  EXPECT_EQ(timelines_at(1), std::set<std::string>{"a"});
  keeper_ = 2;
  ++attempt_;
  run({1}, "b", 0);
  EXPECT_EQ(timelines_at(1), std::set<std::string>());
  EXPECT_EQ(timelines_at(2), std::set<std::string>{"b"});
}

// Ranks 0 and 2 hold the same state on two hosts. Neither sends it, and each finds that of the other.
TEST_F(ReplicasTest, AnotherRankWithTheSameStateIsAReplica) {
  const std::vector<std::vector<int>> same = {{0, 2}, {1}, {0, 2}};
  const std::vector<int> states = {0, 1, 0};
  EXPECT_FALSE(client(0, same[0])->keeps());
  EXPECT_TRUE(client(1)->keeps());
  run_ranks(kSnapshotRanks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Memory memory;
    Snapshots snapshots = process(rank, same[r]);
    snapshots.go_on("a", 0);
    for (const std::int64_t step : {1, 2}) save_step(snapshots, memory, states[r], step);
  });
  start(2);
  EXPECT_EQ(newest("a", states, same), 2);
  start(0);
  EXPECT_EQ(newest("a", states, same), 2);
}

// A host that came back with old snapshots takes the newer ones of its neighbour.
TEST_F(ReplicasTest, AHostThatWasAwayIsBroughtUpToDate) {
  run({1, 2});
  const auto old = hosts_[1].memory;
  start(1);
  EXPECT_EQ(newest(), 2);
  run({3, 4}, "a", 2);
  hosts_[1].memory = old;
  EXPECT_EQ(newest(), 4);
}

// Host 1 is cut off with a snapshot that no other host has yet. A spare takes its place, and that step is computed anew, on
// GPUs with other bits. Host 1 comes back, and its rank must not load the old bits while the others load the new ones.
TEST_F(ReplicasTest, AStepThatWasComputedAnewIsNotMixedWithTheOldOne) {
  run({1, 2});
  {
    Memory memory;
    Snapshots alone({.slots = slots_of(*hosts_[1].memory, 0), .rank = 1, .size = kSnapshotRanks});
    alone.go_on("a", 2);
    const std::vector<Entry> old_bits = entries_of(memory, 1, 7777, true);
    alone.save(3, memory.stream(), old_bits, {{"step", 3}, {"rank", 1}});
  }
  const auto cut_off = hosts_[1].memory;
  start(1);
  ++attempt_;
  EXPECT_EQ(newest(), 2);
  run({3}, "a", 2);
  hosts_[1].memory = cut_off;
  ++attempt_;
  EXPECT_EQ(newest(), 3) << "the values are compared, too";
}

TEST_F(ReplicasTest, AHostWithoutRoomAndAHostThatIsGone) {
  Manifest manifest;
  manifest.meta = snapshot_meta("a", 1, 1, kSnapshotRanks, {});
  ReplicaStream stream = connect(2, {1, kSnapshotRanks, kVersion});
  stream.send(topic::kKeep, {{"rank", 1}, {"bytes", std::int64_t{1} << 60}, {"manifest", to_json(manifest)}, {"stays", -1}});
  EXPECT_TRUE(contains(error_of(ExitCode::peer, [&] { stream.answer(topic::kReady); }),
                       "no memory for a snapshot of 1152921504606846976 bytes"));
  stream.send(topic::kFind, {{"ranks", {1}}, {"size", kSnapshotRanks}, {"timeline", "a"}});
  EXPECT_EQ(stream.answer(topic::kFound), Json::array()) << "the server serves on";

  run({1});
  const std::unique_ptr<ReplicaClient> late = client(1);
  hosts_[2].server.reset();
  const std::string error = error_of(ExitCode::data, [&] { late->forget(); });
  EXPECT_TRUE(error.starts_with("rank 1 cannot take back its snapshots from 127.0.0.1:")) << error;
}

TEST_F(ReplicasTest, StrangersAndNonsense) {
  EXPECT_TRUE(contains(error_of(ExitCode::peer,
                                [&] {
                                  connect(0, {1, kSnapshotRanks, "octet 2"});
                                }),
                       "rank 1 is octet 2, node0 is octet 1"));
  const comm::Token token = std::exchange(token_, comm::Token::random());
  EXPECT_TRUE(contains(error_of(ExitCode::peer, [&] { connect(0, {1, kSnapshotRanks, kVersion}); }), "its token is not node0's"));
  token_ = token;
  ReplicaStream stream = connect(0, {1, kSnapshotRanks, kVersion});
  for (const Json& request : {Json(), Json(7), Json{{"rank", "x"}}, Json{{"ranks", {1}}, {"size", 3}}}) {
    for (const char* what : {topic::kFind, topic::kRead, topic::kKeep}) {
      stream.send(what, request);
      error_of(ExitCode::peer, [&] { stream.answer(topic::kDone); });
    }
  }
  stream.send(topic::kRead, {{"rank", 1}, {"size", kSnapshotRanks}, {"timeline", "a"}, {"attempt", 1}, {"step", 7}});
  EXPECT_EQ(error_of(ExitCode::peer, [&] { stream.answer(topic::kData); }), "has no snapshot of step 7 any more");
}

TEST(ReplicaPlaces, TravelThroughTheEnvironment) {
  const ReplicaPlaces places{
      .to = "10.0.0.2:4711", .from = {"10.0.0.2:4711", "[fd00::7]:5"}, .ranks_per_host = 8, .bytes_here = std::int64_t{1} << 40};
  const std::string variable = places.variable();
  const std::size_t equals = variable.find('=');
  ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  const ReplicaPlaces read = inherited_replica_places().value();
  EXPECT_EQ(read.to, places.to);
  EXPECT_EQ(read.from, places.from);
  EXPECT_EQ(read.ranks_per_host, 8);
  EXPECT_EQ(read.bytes_here, std::int64_t{1} << 40);
  ::setenv("OCTET_REPLICAS", "{", 1);
  EXPECT_THROW(inherited_replica_places(), Error);
  ::unsetenv("OCTET_REPLICAS");
  EXPECT_FALSE(inherited_replica_places());
}

}  // namespace
}  // namespace octet::checkpoint
