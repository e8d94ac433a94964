#include "octet/checkpoint/snapshot_slot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "octet/base/control_group.h"
#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::checkpoint {
SnapshotId id_of(const Manifest& manifest) {
  return {.attempt = manifest.meta.value("attempt", std::int64_t{0}), .step = manifest.step};
}

nlohmann::json snapshot_meta(const std::string& timeline, std::int64_t attempt, int rank, int ranks,
                             const nlohmann::json& run) {
  return {{"timeline", timeline}, {"attempt", attempt}, {"rank", rank}, {"ranks", ranks}, {"run", run}};
}

bool is_of(const Manifest& manifest, const std::string& timeline, int rank, int ranks) {
  const nlohmann::json& meta = manifest.meta;
  return meta.value("timeline", "") == timeline && meta.value("rank", -1) == rank && meta.value("ranks", -1) == ranks;
}

std::optional<Manifest> manifest_in(const SnapshotSlot& slot, const std::function<void(std::string_view)>& on_warning) {
  try {
    const std::string path = concat(kDescriptors, "/", slot.manifest);
    const std::string text = read_file(path);
    return text.empty() ? std::nullopt : std::optional(parse_manifest_part(text, path));
  } catch (const std::exception& error) {
    if (on_warning) on_warning(concat("the list of a snapshot in memory cannot be used: ", error.what()));
    return std::nullopt;
  }
}

std::size_t slot_to_fill(std::span<const std::int64_t> steps, std::int64_t stays) {
  const auto goes_later = [&](std::int64_t step) { return std::pair(step >= 0 && step == stays, step); };
  const auto first =
      std::min_element(steps.begin(), steps.end(), [&](std::int64_t a, std::int64_t b) { return goes_later(a) < goes_later(b); });
  return static_cast<std::size_t>(first - steps.begin());
}

std::int64_t bytes_taken(const SnapshotSlot& slot) {
  constexpr std::int64_t kBlock = 512;  // of st_blocks, on every file system
  struct stat status {};
  if (::fstat(slot.data, &status) != 0) fail_errno(ExitCode::internal, "cannot read the size of a snapshot");
  return status.st_blocks * kBlock;
}

void SlotWriter::empty() {
  if (::ftruncate(slot_.manifest, 0) != 0) fail_errno(ExitCode::internal, "cannot empty a snapshot");
}

std::byte* SlotWriter::make_room(std::size_t bytes) {
  if (memory_ && bytes_ == bytes) return memory_;
  unmap();
  // fallocate() takes what it gets before it fails, and the kernel may kill a process for it.
  const std::optional<std::int64_t> free = host_memory().available_bytes;
  const std::int64_t missing = static_cast<std::int64_t>(bytes) - bytes_taken(slot_);
  demand(!free || missing <= *free, ExitCode::internal, "no memory for a snapshot of ", bytes, " bytes; ", free.value_or(0),
         " are free on this host");
  const auto size = static_cast<off_t>(bytes);
  if (::ftruncate(slot_.data, size) != 0 || ::fallocate(slot_.data, 0, 0, size) != 0)
    fail_errno(ExitCode::internal, concat("no memory for a snapshot of ", bytes, " bytes"));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slot_.data, 0);
  if (memory == MAP_FAILED) fail_errno(ExitCode::internal, "cannot map the memory for snapshots");
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return memory_;
}

void SlotWriter::publish(const Manifest& manifest) {
  const std::string text = to_json(manifest);
  const ssize_t written = ::pwrite(slot_.manifest, text.data(), text.size(), 0);
  if (written < 0) fail_errno(ExitCode::internal, "cannot write the list of a snapshot");
  require(static_cast<std::size_t>(written) == text.size(), "a snapshot's list was cut at ", written, " bytes");
}

void SlotWriter::lock(Device& device) {
  if (!lock_) lock_ = std::make_unique<PageLock>(device, memory_, bytes_);
}

void SlotWriter::unmap() {
  lock_.reset();
  if (memory_) ::munmap(std::exchange(memory_, nullptr), bytes_);
}

}  // namespace octet::checkpoint
