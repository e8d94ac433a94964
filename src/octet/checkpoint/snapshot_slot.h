// A slot: room in memory for one snapshot of one rank.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "octet/checkpoint/manifest.h"
#include "octet/device/page_lock.h"

namespace octet::checkpoint {

// Two unnamed files, memfd_create(2).
struct SnapshotSlot {
  int data = -1;      // a safetensors file
  int manifest = -1;  // the rank's part of a manifest, written last; empty: there is no snapshot
};

// The folder in which each open descriptor of this process has a path.
inline constexpr const char* kDescriptors = "/proc/self/fd";

// Distinguishes the snapshots of a rank on a timeline. An attempt may continue from an older step than the previous attempt had
// reached. The steps that it computes again have other bits on GPUs, and a host that was away may still have the old ones.
struct SnapshotId {
  std::int64_t attempt = 0, step = 0;
  auto operator<=>(const SnapshotId&) const = default;
};
SnapshotId id_of(const Manifest& manifest);

// Returns the meta of a snapshot's manifest. `run` is what the rank has saved in addition to its tensors.
nlohmann::json snapshot_meta(const std::string& timeline, std::int64_t attempt, int rank, int ranks,
                             const nlohmann::json& run);
// Whether a rank with this number, among this many ranks, took the snapshot on this timeline.
bool is_of(const Manifest& manifest, const std::string& timeline, int rank, int ranks);

// Returns the manifest in a slot, or nothing if the slot is empty, cannot be read or is incomplete because its writer was
// killed. In the last two cases it calls on_warning, if given, with a line.
std::optional<Manifest> manifest_in(const SnapshotSlot& slot, const std::function<void(std::string_view)>& on_warning = {});

// Returns which of the slots with these steps the next snapshot takes: the oldest one, but never that of step `stays`. A slot
// without a snapshot has step -1. If `stays` is -1, any slot may be overwritten.
std::size_t slot_to_fill(std::span<const std::int64_t> steps, std::int64_t stays);

// The memory that a slot takes now.
std::int64_t bytes_taken(const SnapshotSlot& slot);

// Fills a slot. While it is being filled, the slot counts as empty, until publish().
class SlotWriter {
 public:
  explicit SlotWriter(SnapshotSlot slot) : slot_(slot) {}
  ~SlotWriter() { unmap(); }
  SlotWriter(SlotWriter&& other) noexcept
      : slot_(other.slot_), memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), lock_(std::move(other.lock_)) {}
  SlotWriter& operator=(SlotWriter&&) = delete;

  const SnapshotSlot& slot() const { return slot_; }
  void empty();
  // Returns memory for `bytes` bytes of data. Throws Error{internal} if the kernel does not reserve it, because a write to a
  // page that is not reserved would kill the process.
  std::byte* make_room(std::size_t bytes);
  // Speeds up copies from a device to that memory, if possible. The device must outlive this object.
  void lock(Device& device);
  // The manifest's slices must name data_file().
  void publish(const Manifest& manifest);
  // The name of the data in kDescriptors.
  std::string data_file() const { return std::to_string(slot_.data); }

 private:
  void unmap();

  SnapshotSlot slot_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<PageLock> lock_;  // on memory_
};

}  // namespace octet::checkpoint
