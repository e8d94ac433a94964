#include "octet/checkpoint/snapshots.h"

#include <fcntl.h>
#include <unistd.h>

#include <numeric>
#include <span>

#include "checkpoint/snapshot_ranks.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::checkpoint {
namespace {

using Json = nlohmann::json;
using testing::run_ranks;

// A run of three ranks on one host, whose processes come and go.
class SnapshotsTest : public ::testing::Test {
 protected:
  Snapshots process(int rank) const { return Snapshots({.slots = slots_of(memory_, rank), .rank = rank, .size = kSnapshotRanks}); }

  // Snapshots of these steps by all ranks of an attempt that goes on from step `from`.
  void run(std::vector<std::int64_t> steps, const std::string& timeline = "a", std::int64_t from = 0) {
    run_ranks(kSnapshotRanks, [&](int rank) {
      Memory memory;
      Snapshots snapshots = process(rank);
      snapshots.go_on(timeline, from);
      for (const std::int64_t step : steps) save_step(snapshots, memory, rank, step);
    });
  }

  // The step that all ranks load, with the right values; -1: none.
  std::int64_t newest(const std::string& timeline = "a", std::function<bool(std::int64_t, const Json&)> usable = {}) {
    LosableStore store;
    std::vector<std::int64_t> steps(kSnapshotRanks, -1);
    warnings_.assign(kSnapshotRanks, "");
    run_ranks(kSnapshotRanks, [&](int rank) {
      Snapshots snapshots = process(rank);
      const auto reader = snapshots.newest(
          ranks_of(store, rank, kSnapshotRanks), timeline,
          [&](std::int64_t step, const Json& meta) { return !usable || usable(step, meta); },
          [&](std::string_view line) { warnings_[static_cast<std::size_t>(rank)] += line; });
      if (!reader) return;
      steps[static_cast<std::size_t>(rank)] = reader->step();
      expect_loads(*reader, rank);
    });
    EXPECT_EQ(store.keys(), 0u) << "what ranks tell each other stays in the store";
    for (const std::int64_t step : steps) EXPECT_EQ(step, steps[0]);
    return steps[0];
  }

  // The slot of a rank that holds a snapshot of this step; its two files.
  SnapshotSlot slot_with(int rank, std::int64_t step) const {
    for (const SnapshotSlot& slot : slots_of(memory_, rank).own) {
      const std::string text = read_file(concat("/proc/self/fd/", slot.manifest));
      if (!text.empty() && parse_manifest_part(text, "slot").step == step) return slot;
    }
    ADD_FAILURE() << "rank " << rank << " has no snapshot of step " << step;
    return {};
  }

  SnapshotMemory memory_{kSnapshotRanks};
  std::vector<std::string> warnings_;
};

TEST_F(SnapshotsTest, TheNewestIsLoadedByProcessesThatCameLater) {
  EXPECT_EQ(newest(), -1);
  EXPECT_EQ(bytes_taken(slots_of(memory_, 0)), 0);
  run({1});
  EXPECT_EQ(newest(), 1);
  // Each rank has filled a slot with a third of the elements, and the header of a file.
  const std::int64_t data = 4 * (97 + 16 * 24 + 2);
  EXPECT_GE(bytes_taken(slots_of(memory_, 0)), data);
  EXPECT_LE(bytes_taken(slots_of(memory_, 0)), data + kSnapshotRanks * 8192);
  run({2, 3, 4, 5, 6}, "a", 1);
  EXPECT_EQ(newest(), 6);
  EXPECT_EQ(newest("b"), -1);
  EXPECT_EQ(newest("a", [](std::int64_t step, const Json& meta) { return step < 6 && meta["step"] == step; }), 5);
  EXPECT_EQ(newest("a", [](std::int64_t, const Json&) { return false; }), -1);
}

// Ranks are killed at any moment of a snapshot: there is always a step of which all have one.
TEST_F(SnapshotsTest, ARankThatIsOneSnapshotBehind) {
  for (int behind = 0; behind < kSnapshotRanks; ++behind) {
    for (std::int64_t steps = 1; steps <= 5; ++steps) {
      run_ranks(kSnapshotRanks, [&](int rank) {
        Memory memory;
        Snapshots snapshots = process(rank);
        snapshots.go_on(concat(behind, steps), 0);
        for (std::int64_t step = 1; step <= steps; ++step) save_step(snapshots, memory, rank, step);
        if (rank != behind) save_step(snapshots, memory, rank, steps + 1);
      });
      EXPECT_EQ(newest(concat(behind, steps)), steps);
      // The next one is being written.
      for (int rank = 0; rank < kSnapshotRanks; ++rank) {
        if (rank != behind) {
          EXPECT_EQ(::ftruncate(slot_with(rank, steps + 1).manifest, rank), 0);
        }
      }
      EXPECT_EQ(newest(concat(behind, steps)), steps);
    }
  }
}

// What was taken after the step from which a run goes on may have other bits than what is computed now.
TEST_F(SnapshotsTest, LaterOnesGoWhenTheRunGoesOn) {
  run({1, 2, 3});
  run({}, "a", 2);
  EXPECT_EQ(newest(), 2);
  run({5}, "b", 2);
  EXPECT_EQ(newest("a"), -1);
  EXPECT_EQ(newest("b"), 5);
}

TEST_F(SnapshotsTest, AFlippedBitCostsOneSnapshot) {
  run({1, 2, 3});
  flip_last_bit(slot_with(1, 3));
  EXPECT_EQ(newest(), 2);
  for (const std::string& warning : warnings_) {
    EXPECT_TRUE(warning.starts_with("the snapshot of step 3 in memory cannot be used: rank 1: /proc/self/fd/")) << warning;
    EXPECT_NE(warning.find("its bytes are damaged (XXH3 sum "), std::string::npos) << warning;
  }
}

// A list that cannot be read is not taken for an empty slot: one rank warns of it.
TEST_F(SnapshotsTest, ADamagedListIsNamed) {
  run({1, 2, 3});
  ASSERT_EQ(::ftruncate(slot_with(1, 3).manifest, 10), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest(), 2);
  const std::string warning = ::testing::internal::GetCapturedStderr();
  const std::string words = "the list of a snapshot in memory cannot be used: /proc/self/fd/";
  EXPECT_NE(warning.find(words), std::string::npos) << warning;
  EXPECT_EQ(warning.find(words), warning.rfind(words)) << warning;
}

// As after a host was replaced by one without memory of the run.
TEST_F(SnapshotsTest, ARankWithoutMemory) {
  run({1, 2, 3});
  for (const SnapshotSlot& slot : slots_of(memory_, 2).own) ASSERT_EQ(::ftruncate(slot.manifest, 0), 0);
  EXPECT_EQ(newest(), -1);
}

TEST_F(SnapshotsTest, WhatMustNotCountDoesNot) {
  run({1});
  run_ranks(kSnapshotRanks, [&](int rank) {
    Memory memory;
    Snapshots snapshots({.slots = slots_of(memory_, rank), .rank = rank, .size = kSnapshotRanks, .may_publish = [rank] {
                           if (rank == 0) fail(ExitCode::internal, "metrics.jsonl: cannot write: No space left on device");
                         }});
    snapshots.go_on("a", 1);
    save_step(snapshots, memory, rank, 2);
  });
  EXPECT_EQ(newest(), 1);
}

// One rank fails again and again: the step that all have must not be overwritten meanwhile.
TEST_F(SnapshotsTest, FailuresOfOneRankKeepTheNewestOfAll) {
  const auto run_failing = [&](const std::vector<std::int64_t>& steps, const std::vector<std::int64_t>& failing, std::int64_t from) {
    save_together(steps, failing, "a", from, [&](int rank, std::function<void()> may_publish) {
      return Snapshots(
          {.slots = slots_of(memory_, rank), .rank = rank, .size = kSnapshotRanks, .may_publish = std::move(may_publish)});
    });
  };
  run_failing({1, 2, 3}, {1, 2, 3}, 0);
  EXPECT_EQ(newest(), -1);
  run_failing({4, 5, 6}, {6}, 0);
  EXPECT_EQ(newest(), 5);
  run_failing({6, 7, 8, 9}, {6, 7, 8, 9}, 5);
  EXPECT_EQ(newest(), 5);
  run_failing({6, 7, 8, 9, 10}, {6, 7, 10}, 5);
  EXPECT_EQ(newest(), 9);
}

// The disk of one rank fails from the third snapshot on. The others must not push out the last copy that all have.
TEST_F(SnapshotsTest, CopiesOnDisksKeepTheNewestOfAll) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  LosableStore store;
  const auto open = [&](const SnapshotMemory& memory, int rank, std::function<void()> may_publish) {
    return Snapshots({.slots = slots_of(memory, rank),
                      .rank = rank,
                      .size = kSnapshotRanks,
                      .local = std::make_unique<LocalSnapshots>(folder / concat("disk", rank), folder / "run",
                                                                ranks_of(store, rank, kSnapshotRanks), DiskFault::refuse, 0),
                      .may_publish = std::move(may_publish)});
  };
  int taken = 0;
  save_together({1, 2, 3, 4, 5}, {}, "a", 0, [&](int rank, const std::function<void()>&) {
    return open(memory_, rank, [&, rank] {
      if (rank == 1 && ++taken == 3) std::filesystem::rename(folder / "disk1", folder / "away");
    });
  });
  EXPECT_EQ(taken, 5);
  EXPECT_EQ(newest(), 5) << "in memory";
  std::filesystem::rename(folder / "away", folder / "disk1");
  const SnapshotMemory after_a_reboot(kSnapshotRanks);
  run_ranks(kSnapshotRanks, [&](int rank) {
    const auto reader = open(after_a_reboot, rank, {}).newest(
        ranks_of(store, rank, kSnapshotRanks), "a", [](std::int64_t, const Json&) { return true; }, [](std::string_view) {});
    ASSERT_TRUE(reader) << "rank " << rank;
    EXPECT_EQ(reader->step(), 2);
    expect_loads(*reader, rank);
  });
}

// A disk that gives no list may give it later, so nothing is deleted for that.
TEST(LocalSnapshots, KeepWhatTheyCannotRead) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  LocalSnapshots copies(folder / "disk", folder / "run", {}, DiskFault::refuse, 0);
  const std::filesystem::path list = copies.folder() / "rank-00000.0.json", data = copies.folder() / "rank-00000.0.safetensors";
  testing::write_text(list, "{");
  testing::write_text(data, "x");
  copies.go_on("a", 5);
  EXPECT_TRUE(std::filesystem::exists(list) && std::filesystem::exists(data));
  std::filesystem::remove(list);
  copies.go_on("a", 5);
  EXPECT_FALSE(std::filesystem::exists(data)) << "a copy without a list was never complete";
}

// An older program must not delete what it cannot read.
TEST(LocalSnapshots, RefuseALaterVersion) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  const SnapshotMemory memory(1);
  auto copies = std::make_unique<LocalSnapshots>(folder / "disk", folder / "run", Ranks{}, DiskFault::refuse, 0);
  const std::filesystem::path list = copies->folder() / "rank-00000.0.json";
  testing::write_text(list, R"({"format":"octet-checkpoint","version":2})");
  Snapshots snapshots({.slots = slots_of(memory, 0), .local = std::move(copies)});
  const std::string message = testing::error_of(ExitCode::data, [&] {
    snapshots.newest(
        {}, "a", [](std::int64_t, const Json&) { return true; }, [](std::string_view) {});
  });
  EXPECT_EQ(message, list.string() + ": version 2, this program reads version 1; use a newer octet, or move this copy away");
}

// A run that goes on with fewer ranks has no use for the copies of the others.
TEST(LocalSnapshots, DeleteThoseOfRanksThatAreNoMore) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  LocalSnapshots copies(folder / "disk", folder / "run", {}, DiskFault::refuse, 0);
  for (const char* name : {"rank-00001.0.json", "rank-00012.1.safetensors", "notes.txt"})
    testing::write_text(copies.folder() / name, "x");
  copies.go_on("a", 5);
  EXPECT_EQ(testing::names_in(copies.folder()), (std::vector<std::string>{"notes.txt", "run.txt"}));
}

TEST_F(SnapshotsTest, AReasonIsToldOnce) {
  ::testing::internal::CaptureStderr();
  {
    Memory memory;
    Snapshots snapshots({.slots = slots_of(memory_, 0), .rank = 0, .size = kSnapshotRanks, .may_publish = [] {
                           fail(ExitCode::internal, "metrics.jsonl: cannot write: No space left on device");
                         }});
    for (const std::int64_t step : {2, 3, 4}) save_step(snapshots, memory, 0, step);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: the snapshot of step 2 was not taken: metrics.jsonl: cannot write: No space left on device\n");
}

TEST_F(SnapshotsTest, ATensorInSeveralStretchesOfLockedMemory) {
  const SnapshotMemory memory(1);
  const std::int64_t count = 5 * static_cast<std::int64_t>(PageLock::kStretch) / 8;  // 2.5 stretches
  const auto with_tensor = [&](const auto& use) {
    Memory device;
    const std::vector<Entry> entries = {{.name = "x",
                                         .tensor = device.tensor(DType::i32, {count}),
                                         .global = {count},
                                         .slice = Slice::whole({count}),
                                         .steady = true}};
    Snapshots snapshots({.slots = slots_of(memory, 0)});
    use(snapshots, device.stream(), entries, std::span(entries[0].tensor.as<std::int32_t>(), static_cast<std::size_t>(count)));
  };
  with_tensor([&](Snapshots& snapshots, Stream& stream, const std::vector<Entry>& entries, std::span<std::int32_t> x) {
    std::iota(x.begin(), x.end(), 7);
    snapshots.go_on("a", 0);
    snapshots.prepare(stream.device(), entries);
    snapshots.save(1, stream, entries, {});
  });
  with_tensor([&](Snapshots& snapshots, Stream& stream, const std::vector<Entry>& entries, std::span<std::int32_t> x) {
    const std::optional<Reader> reader = snapshots.newest({}, "a", [](auto...) { return true; }, [](auto) {});
    ASSERT_TRUE(reader);
    reader->load(stream, entries);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], static_cast<std::int32_t>(i) + 7);
  });
}

TEST_F(SnapshotsTest, OtherNumbersOfRanksHaveNoUseForThem) {
  run({1});
  LosableStore store;
  run_ranks(2, [&](int rank) {
    Snapshots snapshots({.slots = slots_of(memory_, rank), .rank = rank, .size = 2});
    EXPECT_FALSE(snapshots.newest(
        ranks_of(store, rank, 2), "a", [](auto...) { return true; }, [](auto) {}));
  });
}

// A process that inherits memory keeps it from being freed.
TEST(SnapshotMemory, IsInheritedWhereRanksNeedIt) {
  const auto is_inherited = [](const SnapshotMemory& memory) {
    return (::fcntl(memory.slots(0).front().data, F_GETFD) & FD_CLOEXEC) == 0;
  };
  EXPECT_TRUE(is_inherited(SnapshotMemory(1)));
  EXPECT_FALSE(is_inherited(SnapshotMemory(1, Heirs::none)));
}

TEST(SnapshotMemory, RefusesWhatIsNotItsOwn) {
  const SnapshotMemory memory(2);
  EXPECT_EQ(slots_of(memory, 1).host.size(), 4u);
  EXPECT_EQ(slots_of(memory, 1).own.front().data, slots_of(memory, 0).host[2].data);
  for (const char* value : {"", "0:", "0:1", "x:0,1,2,0", "-1:0,1,2,0", "1:0,1,2,0", "0:0,1,2,", "0:0,1,2,9999"}) {
    EXPECT_THROW(slots_in(value), Error) << value;
  }
}

}  // namespace
}  // namespace octet::checkpoint
