#include "octet/checkpoint/snapshot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::checkpoint {
namespace {

constexpr const char* kVariable = "OCTET_SNAPSHOTS";
constexpr std::size_t kFilesPerRank = 2 * kSlotsPerRank;

int number_in(std::string_view& text, char end) {
  int value = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<std::size_t>(stop - text.data());
  if (error != std::errc() || value < 0 || (length < text.size() && text[length] != end)) return -1;
  text.remove_prefix(std::min(text.size(), length + 1));
  return value;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

}  // namespace

SnapshotMemory::SnapshotMemory(int ranks, Heirs heirs) {
  for (std::size_t file = 0; file < static_cast<std::size_t>(ranks) * kFilesPerRank; ++file) {
    files_.emplace_back(::memfd_create("octet snapshot", heirs == Heirs::none ? MFD_CLOEXEC : 0));
    if (!files_.back().open()) fail_errno(ExitCode::internal, "cannot make the memory for snapshots");
  }
}

std::vector<SnapshotSlot> SnapshotMemory::slots(int local_rank) const {
  std::vector<SnapshotSlot> slots;
  const std::size_t first = static_cast<std::size_t>(local_rank) * kFilesPerRank;
  for (std::size_t i = first; i < first + kFilesPerRank; i += 2) slots.push_back({files_[i].get(), files_[i + 1].get()});
  return slots;
}

std::string SnapshotMemory::variable(int local_rank) const {
  std::string text = concat(kVariable, "=", local_rank, ":");
  for (std::size_t i = 0; i < files_.size(); ++i) text += concat(i > 0 ? "," : "", files_[i].get());
  return text;
}

std::int64_t bytes_taken(const InheritedSlots& slots) {
  std::int64_t bytes = 0;
  for (const SnapshotSlot& slot : slots.host) bytes += bytes_taken(slot);
  return bytes;
}

InheritedSlots slots_in(std::string_view value) {
  std::string_view rest = value;
  const int local_rank = number_in(rest, ':');
  std::vector<int> files;
  while (!rest.empty() && (files.empty() || files.back() >= 0)) files.push_back(number_in(rest, ','));
  const auto first = static_cast<std::size_t>(local_rank) * kSlotsPerRank;
  bool good = local_rank >= 0 && files.size() % kFilesPerRank == 0 && first * 2 < files.size();
  for (const int file : files) good = good && is_open(file);
  demand(good, ExitCode::config, kVariable, " = \"", value,
         "\" does not name memory of this process; `octet launch --supervise` sets it, so unset it elsewhere");
  InheritedSlots slots;
  for (std::size_t i = 0; i < files.size(); i += 2) slots.host.push_back({.data = files[i], .manifest = files[i + 1]});
  for (std::size_t i = 0; i < kSlotsPerRank; ++i) slots.own.push_back(slots.host[first + i]);
  return slots;
}

std::optional<InheritedSlots> inherited_slots() {
  const char* const value = std::getenv(kVariable);
  return value ? std::optional(slots_in(value)) : std::nullopt;
}

}  // namespace octet::checkpoint
