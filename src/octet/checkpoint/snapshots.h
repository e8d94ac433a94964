// Snapshots of a run's state in the memory of its hosts. With them, a run that has lost ranks continues from a few steps ago
// instead of from its newest checkpoint. A snapshot of a rank holds all that the rank holds, and only a rank with the same
// number among as many ranks can load it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/clock.h"
#include "octet/base/json.h"
#include "octet/checkpoint/local_snapshots.h"
#include "octet/checkpoint/part.h"
#include "octet/checkpoint/ranks.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/replica_client.h"
#include "octet/checkpoint/snapshot_memory.h"

namespace octet::checkpoint {

struct SnapshotsOptions {
  InheritedSlots slots;
  int rank = 0, size = 1;
  std::int64_t attempt = 0;  // at the run, by a supervisor; the number only grows
  // On other hosts. Null: there are none.
  std::unique_ptr<ReplicaClient> replicas = nullptr;
  // Copies on this host's disk; null without checkpoint.local_dir.
  std::unique_ptr<LocalSnapshots> local = nullptr;
  // The thread that copies calls it before a snapshot counts. If it throws, the snapshot does not count.
  std::function<void()> may_publish = {};
};

// All ranks take snapshots after the same steps, and only when no rank is still busy with the previous one. If a rank has
// failed() to take the previous one, all ranks give it up, and the next one overwrites it. Otherwise all ranks have it, and the
// next one overwrites an older one. So there is always a step of which every rank has a snapshot. The same holds for replicas
// and for copies on local disks.
class Snapshots {
 public:
  explicit Snapshots(SnapshotsOptions options);
  ~Snapshots();  // waits
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  // Opens the newest snapshot of `timeline` that all ranks have from the same attempt, whose bytes agree with their sums, and
  // for which rank 0's `usable` returns true. A rank has it in memory here, in the memory of another host, or on the local
  // disk. `meta` is what rank 0 has saved. Returns nothing if there is none. Calls on_warning with a line about each unusable
  // snapshot and each host that does not answer. Collective.
  std::optional<Reader> newest(const Ranks& ranks, const std::string& timeline,
                               const std::function<bool(std::int64_t step, const nlohmann::json& meta)>& usable,
                               const std::function<void(std::string_view)>& on_warning);

  // From now on, snapshots belong to `timeline`. Give it a new name whenever steps may be computed again with other bits.
  // Deletes this rank's snapshots of other timelines and of steps after `step`. With -1 it deletes all, and their replicas if
  // their host can be reached.
  void go_on(const std::string& timeline, std::int64_t step);

  // Begins to reserve the memory for snapshots of these entries, so that the first snapshots are as fast as later ones. busy()
  // is true until the memory is reserved.
  void prepare(Device& device, std::span<const Entry> entries);

  // Copies the entries. When it returns, entries that are not steady may change; the others may change after wait_for_copy().
  // Waits for the previous snapshot. A failed snapshot causes a warning in the next call, not an error.
  void save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta);
  void wait_for_copy();
  // Whether a snapshot is being taken or prepared.
  bool busy() const;
  // Whether the last snapshot, its replica or its copy on the local disk is missing on this rank.
  bool failed() const { return !busy() && failed_; }
  // Gives up the last snapshot, which some rank lacks: the next one overwrites it and keeps the one before it, which all ranks
  // have. Call it on all ranks before save() if any rank has failed().
  void give_up_last() { common_stays_ = true; }
  // How many seconds the last snapshot took until it counted and had a replica. Its copy on the local disk comes after that.
  double took_s() const { return took_s_; }

 private:
  struct Slot {
    SlotWriter writer;
    std::int64_t step = -1;  // -1: there is no snapshot
  };
  struct Failure {
    std::string what;    // "the snapshot of step 12 was not taken"
    std::string reason;  // "": nothing failed
  };
  void wait();
  Slot& next_slot();
  Manifest fetch(const Replica& replica);
  // Copies a snapshot, begun at `start`, to places that outlive the memory of this host.
  Failure copy_elsewhere(std::span<const std::byte> data, const Manifest& manifest, Clock::time_point start);
  std::span<const std::byte> fill(Slot& slot, Part& part, const std::vector<Piece>& early, std::promise<void>& copied);

  SnapshotsOptions options_;
  std::vector<Slot> slots_;  // of this rank
  std::string timeline_;
  std::int64_t last_ = -1;     // the step of the last snapshot that was begun, or from which the run went on; -1: none
  std::int64_t common_ = -1;   // the newest step before it of which all ranks have a snapshot
  bool common_stays_ = false;  // in the next save(), because not all ranks have that of last_
  bool failed_ = false;        // written while busy()
  std::vector<std::byte> early_;  // the entries that are not steady
  std::unique_ptr<Stream> copies_;
  std::future<void> copied_;
  std::future<Failure> pending_;
  std::string trouble_;  // the reason of the last failure, which is told once
  double took_s_ = 0;
};

}  // namespace octet::checkpoint
