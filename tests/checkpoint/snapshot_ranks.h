// Three ranks in threads that take snapshots of tensors whose values tell the step.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/many_ranks.h"
#include "octet/checkpoint/snapshots.h"

namespace octet::checkpoint {

inline constexpr int kSnapshotRanks = 3;
inline const std::vector<Shape> kSnapshotShapes = {{97}, {16, 24}, {2}};

inline InheritedSlots slots_of(const SnapshotMemory& memory, int local_rank) {
  const std::string variable = memory.variable(local_rank);
  return slots_in(std::string_view(variable).substr(variable.find('=') + 1));
}

inline std::vector<Entry> entries_of(Memory& memory, int rank, std::int32_t first, bool filled) {
  std::vector<Entry> entries;
  for (std::size_t k = 0; k < kSnapshotShapes.size(); ++k) {
    entries.push_back(entry_of(memory, concat("tensor", k), kSnapshotShapes[k],
                               slice_of(kSnapshotShapes[k], Cut::flat, rank, kSnapshotRanks), first, filled));
    entries.back().steady = k != 1;
  }
  return entries;
}

inline void flip_last_bit(const SnapshotSlot& slot) {
  char byte = 0;
  const off_t last = ::lseek(slot.data, -1, SEEK_END);
  ASSERT_EQ(::pread(slot.data, &byte, 1, last), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(slot.data, &byte, 1, last), 1);
}

// Takes a snapshot of what rank `state` holds after a step, and changes the tensors as soon as that is allowed.
inline void save_step(Snapshots& snapshots, Memory& memory, int state, std::int64_t step) {
  const std::vector<Entry> entries = entries_of(memory, state, static_cast<std::int32_t>(1000 * step), true);
  snapshots.save(step, memory.stream(), entries, {{"step", step}, {"rank", state}});
  for (const Entry& entry : entries) {
    if (entry.steady) continue;
    std::fill_n(entry.tensor.as<std::int32_t>(), entry.tensor.elements(), -1);
  }
  snapshots.wait_for_copy();
  for (const Entry& entry : entries) std::fill_n(entry.tensor.as<std::int32_t>(), entry.tensor.elements(), -1);
}

// All ranks take snapshots of these steps, and none begins one before all have heard how the last one went. Rank 1 fails at those
// of `failing`.
inline void save_together(const std::vector<std::int64_t>& steps, const std::vector<std::int64_t>& failing,
                          const std::string& timeline, std::int64_t from,
                          const std::function<Snapshots(int rank, std::function<void()> may_publish)>& process) {
  std::barrier together(kSnapshotRanks);
  std::atomic<bool> failed = false;
  testing::run_ranks(kSnapshotRanks, [&](int rank) {
    Memory memory;
    std::int64_t now = 0;
    Snapshots snapshots = process(rank, [&] {
      if (rank == 1 && std::find(failing.begin(), failing.end(), now) != failing.end())
        fail(ExitCode::internal, "metrics.jsonl: cannot write: No space left on device");
    });
    snapshots.go_on(timeline, from);
    for (const std::int64_t step : steps) {
      now = step;
      if (failed) snapshots.give_up_last();
      together.arrive_and_wait();
      failed = false;
      save_step(snapshots, memory, rank, step);
      while (snapshots.busy()) std::this_thread::yield();
      together.arrive_and_wait();
      if (snapshots.failed()) failed = true;
      together.arrive_and_wait();
    }
  });
}

// The reader gives what rank `state` held after the reader's step.
inline void expect_loads(const Reader& reader, int state) {
  EXPECT_EQ(reader.meta(), (nlohmann::json{{"step", reader.step()}, {"rank", 0}}));
  Memory memory;
  const std::vector<Entry> entries = entries_of(memory, state, 0, false);
  const std::vector<Entry> wanted = entries_of(memory, state, static_cast<std::int32_t>(1000 * reader.step()), true);
  reader.load(memory.stream(), entries);
  for (std::size_t k = 0; k < entries.size(); ++k) {
    EXPECT_EQ(std::memcmp(entries[k].tensor.data, wanted[k].tensor.data, wanted[k].tensor.bytes()), 0) << "rank " << state;
  }
}

}  // namespace octet::checkpoint
