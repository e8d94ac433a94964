#include "octet/checkpoint/snapshots.h"

#include <unistd.h>

#include "checkpoint/many_ranks.h"
#include "support/errors.h"

namespace octet::checkpoint {
namespace {

using Json = nlohmann::json;
using testing::run_ranks;

constexpr int kRanks = 3;
const std::vector<Shape> kShapes = {{97}, {16, 24}, {2}};

InheritedSlots slots_of(const SnapshotMemory& memory, int local_rank) {
  const std::string variable = memory.variable(local_rank);
  return slots_in(std::string_view(variable).substr(variable.find('=') + 1));
}

std::vector<Entry> entries_of(Memory& memory, int rank, std::int32_t first, bool filled) {
  std::vector<Entry> entries;
  for (std::size_t k = 0; k < kShapes.size(); ++k) {
    entries.push_back(
        entry_of(memory, concat("tensor", k), kShapes[k], slice_of(kShapes[k], Cut::flat, rank, kRanks), first, filled));
    entries.back().steady = k != 1;
  }
  return entries;
}

// A run of three ranks on one host, whose processes come and go.
class SnapshotsTest : public ::testing::Test {
 protected:
  Snapshots process(int rank) const { return Snapshots({.slots = slots_of(memory_, rank), .rank = rank, .size = kRanks}); }

  // Snapshots of these steps by all ranks of an attempt that goes on from step `from`.
  void run(std::vector<std::int64_t> steps, const std::string& timeline = "a", std::int64_t from = 0) {
    run_ranks(kRanks, [&](int rank) {
      Memory memory;
      Snapshots snapshots = process(rank);
      snapshots.go_on(timeline, from);
      for (const std::int64_t step : steps) save(snapshots, memory, rank, step);
    });
  }
  static void save(Snapshots& snapshots, Memory& memory, int rank, std::int64_t step) {
    const std::vector<Entry> entries = entries_of(memory, rank, static_cast<std::int32_t>(1000 * step), true);
    snapshots.save(step, memory.stream(), entries, {{"step", step}, {"rank", rank}});
    for (const Entry& entry : entries) {
      if (entry.steady) continue;
      std::fill_n(entry.tensor.as<std::int32_t>(), entry.tensor.elements(), -1);
    }
    snapshots.wait_for_copy();
    for (const Entry& entry : entries) std::fill_n(entry.tensor.as<std::int32_t>(), entry.tensor.elements(), -1);
  }

  // The step that all ranks load, with the right values; -1: none.
  std::int64_t newest(const std::string& timeline = "a", std::function<bool(std::int64_t, const Json&)> usable = {}) {
    LosableStore store;
    std::vector<std::int64_t> steps(kRanks, -1);
    warnings_.assign(kRanks, "");
    run_ranks(kRanks, [&](int rank) {
      Snapshots snapshots = process(rank);
      const auto reader = snapshots.newest(
          ranks_of(store, rank, kRanks), timeline,
          [&](std::int64_t step, const Json& meta) { return !usable || usable(step, meta); },
          [&](std::string_view line) { warnings_[static_cast<std::size_t>(rank)] += line; });
      if (!reader) return;
      steps[static_cast<std::size_t>(rank)] = reader->step();
      EXPECT_EQ(reader->meta(), (Json{{"step", reader->step()}, {"rank", 0}}));
      Memory memory;
      const std::vector<Entry> entries = entries_of(memory, rank, 0, false);
      const std::vector<Entry> wanted = entries_of(memory, rank, static_cast<std::int32_t>(1000 * reader->step()), true);
      reader->load(memory.stream(), entries);
      for (std::size_t k = 0; k < entries.size(); ++k) {
        EXPECT_EQ(std::memcmp(entries[k].tensor.data, wanted[k].tensor.data, wanted[k].tensor.bytes()), 0) << "rank " << rank;
      }
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

  SnapshotMemory memory_{kRanks};
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
  EXPECT_LE(bytes_taken(slots_of(memory_, 0)), data + kRanks * 8192);
  run({2, 3, 4, 5, 6}, "a", 1);
  EXPECT_EQ(newest(), 6);
  EXPECT_EQ(newest("b"), -1);
  EXPECT_EQ(newest("a", [](std::int64_t step, const Json& meta) { return step < 6 && meta["step"] == step; }), 5);
  EXPECT_EQ(newest("a", [](std::int64_t, const Json&) { return false; }), -1);
}

// Ranks are killed at any moment of a snapshot: there is always a step of which all have one.
TEST_F(SnapshotsTest, ARankThatIsOneSnapshotBehind) {
  for (int behind = 0; behind < kRanks; ++behind) {
    for (std::int64_t steps = 1; steps <= 5; ++steps) {
      run_ranks(kRanks, [&](int rank) {
        Memory memory;
        Snapshots snapshots = process(rank);
        snapshots.go_on(concat(behind, steps), 0);
        for (std::int64_t step = 1; step <= steps; ++step) save(snapshots, memory, rank, step);
        if (rank != behind) save(snapshots, memory, rank, steps + 1);
      });
      EXPECT_EQ(newest(concat(behind, steps)), steps);
      // The next one is being written.
      for (int rank = 0; rank < kRanks; ++rank) {
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
  const SnapshotSlot slot = slot_with(1, 3);
  char byte = 0;
  const off_t last = ::lseek(slot.data, -1, SEEK_END);
  ASSERT_EQ(::pread(slot.data, &byte, 1, last), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(slot.data, &byte, 1, last), 1);
  EXPECT_EQ(newest(), 2);
  for (const std::string& warning : warnings_) {
    EXPECT_TRUE(warning.starts_with("the snapshot of step 3 in memory is damaged: rank 1: /proc/self/fd/")) << warning;
    EXPECT_NE(warning.find("its bytes are damaged (XXH3 sum "), std::string::npos) << warning;
  }
}

// As after a host was replaced by one without memory of the run.
TEST_F(SnapshotsTest, ARankWithoutMemory) {
  run({1, 2, 3});
  for (const SnapshotSlot& slot : slots_of(memory_, 2).own) ASSERT_EQ(::ftruncate(slot.manifest, 0), 0);
  EXPECT_EQ(newest(), -1);
}

TEST_F(SnapshotsTest, WhatMustNotCountDoesNot) {
  run({1});
  LosableStore store;
  run_ranks(kRanks, [&](int rank) {
    Memory memory;
    Snapshots snapshots({.slots = slots_of(memory_, rank), .rank = rank, .size = kRanks, .may_publish = [rank] {
                           if (rank == 0) fail(ExitCode::internal, "metrics.jsonl: cannot write: No space left on device");
                         }});
    snapshots.go_on("a", 1);
    save(snapshots, memory, rank, 2);
  });
  EXPECT_EQ(newest(), 1);
}

TEST_F(SnapshotsTest, OtherNumbersOfRanksHaveNoUseForThem) {
  run({1});
  LosableStore store;
  run_ranks(2, [&](int rank) {
    const Snapshots snapshots({.slots = slots_of(memory_, rank), .rank = rank, .size = 2});
    EXPECT_FALSE(snapshots.newest(
        ranks_of(store, rank, 2), "a", [](auto...) { return true; }, [](auto) {}));
  });
}

TEST(SnapshotMemory, RefusesWhatIsNotItsOwn) {
  const SnapshotMemory memory(2);
  EXPECT_EQ(slots_of(memory, 1).host.size(), 6u);
  EXPECT_EQ(slots_of(memory, 1).own.front().data, slots_of(memory, 0).host[3].data);
  for (const char* value :
       {"", "0:", "0:1", "x:1,2,3,4,5,6", "-1:0,1,2,3,4,5", "1:0,1,2,0,1,2", "0:0,1,2,0,1,", "0:0,1,2,0,1,9999"}) {
    EXPECT_THROW(slots_in(value), Error) << value;
  }
}

}  // namespace
}  // namespace octet::checkpoint
