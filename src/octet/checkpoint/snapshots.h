// Snapshots of a run's state in the memory of its hosts, so that a run that lost ranks goes on from a few steps ago and not from
// its newest checkpoint. A snapshot of a rank holds all that the rank holds, and only a rank with the same number among as many
// ranks can load it.
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

#include "octet/base/json.h"
#include "octet/checkpoint/part.h"
#include "octet/checkpoint/ranks.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/snapshot_memory.h"

namespace octet::checkpoint {

struct SnapshotsOptions {
  InheritedSlots slots;
  int rank = 0, size = 1;
  // The thread that copies calls it before a snapshot counts. What it throws makes the snapshot not count.
  std::function<void()> may_publish = {};
};

// All ranks take snapshots after the same steps, and save() waits for the snapshot before. A rank hears from all others in every
// step. So when it begins a snapshot, all ranks have completed the one before the last, and it overwrites an older one than that.
// There is always a step of which every rank has a snapshot.
class Snapshots {
 public:
  explicit Snapshots(SnapshotsOptions options);
  ~Snapshots();  // waits
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  // Opens the newest snapshot of `timeline` that all ranks have, whose bytes agree with their sums, and which rank 0 finds
  // `usable`. `meta` is what rank 0 has saved. Returns nothing if there is none. on_warning gets a line about each damaged
  // snapshot. Collective.
  std::optional<Reader> newest(const Ranks& ranks, const std::string& timeline,
                               const std::function<bool(std::int64_t step, const nlohmann::json& meta)>& usable,
                               const std::function<void(std::string_view)>& on_warning) const;

  // The snapshots from now on belong to `timeline`. Give it a new name whenever steps may be computed anew with other bits.
  // Deletes this rank's snapshots of other timelines and of steps after `step`. With -1 it deletes all.
  void go_on(const std::string& timeline, std::int64_t step);

  // Copies the entries. When it returns, those that are not steady may change; the others may after wait_for_copy(). Waits for
  // the snapshot before. A snapshot that fails is a warning in the next call, and no error.
  void save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta);
  void wait_for_copy();
  // Whether a snapshot is being taken.
  bool busy() const;
  // How long the last one took, in seconds, from save() until it counted.
  double took_s() const { return took_s_; }

 private:
  struct Room {
    SnapshotSlot slot;
    std::int64_t step = -1;  // -1: there is no snapshot
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  void wait();
  void make_room(Room& room, std::size_t bytes);
  void fill(Room& room, Part& part, const std::vector<Piece>& early, std::promise<void>& copied);

  SnapshotsOptions options_;
  std::vector<Room> rooms_;  // of this rank
  std::string timeline_;
  std::vector<std::byte> early_;  // the entries that are not steady
  std::unique_ptr<Stream> copies_;
  std::future<void> copied_;
  std::future<std::string> pending_;  // gives the failure
  std::string trouble_;               // the last failure that was told
  double took_s_ = 0;
};

}  // namespace octet::checkpoint
