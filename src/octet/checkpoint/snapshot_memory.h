// Memory of a host for the snapshots of its ranks. A supervisor makes it and its ranks inherit it, so a snapshot outlives the
// rank that wrote it. The memory is freed when the supervisor and its ranks have ended, however they end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/descriptor.h"
#include "octet/checkpoint/snapshot_slot.h"

namespace octet::checkpoint {

// One slot is written while the other holds the newest snapshot that all ranks have.
inline constexpr int kSlotsPerRank = 2;

// Which processes inherit the memory. A process that inherits memory keeps it from being freed.
enum class Heirs { children, none };

class SnapshotMemory {
 public:
  // Makes empty slots for `ranks` ranks. They take memory as they are filled. Throws Error{internal}.
  explicit SnapshotMemory(int ranks, Heirs heirs = Heirs::children);
  int ranks() const { return static_cast<int>(files_.size()) / (2 * kSlotsPerRank); }
  // The slots of one rank. The ranks of a host are counted from 0.
  std::vector<SnapshotSlot> slots(int local_rank) const;
  // "OCTET_SNAPSHOTS=...", for the environment of a rank of this host, counted from 0.
  std::string variable(int local_rank) const;

 private:
  std::vector<Descriptor> files_;
};

// The slots that OCTET_SNAPSHOTS gives a rank.
struct InheritedSlots {
  std::vector<SnapshotSlot> host;  // of all ranks of this host
  std::vector<SnapshotSlot> own;   // where this rank writes
};
// Returns how much memory the snapshots of all ranks of this host take now.
std::int64_t bytes_taken(const InheritedSlots& slots);
// Reads the value of the variable. Throws Error{config} if it does not name open files.
InheritedSlots slots_in(std::string_view value);
// Returns nothing without a supervisor.
std::optional<InheritedSlots> inherited_slots();

}  // namespace octet::checkpoint
