// Copies of snapshots on each host's own disk (checkpoint.local_dir), from which a run continues after all its hosts were
// restarted. A rank writes copies of its own snapshots in the background and keeps two: one is complete while the other is
// written. The first copy of rank 3 is rank-00003.0.safetensors with rank-00003.0.json, its part of a manifest, which is
// written last; the second copy has 1 in place of 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/ranks.h"

namespace octet::checkpoint {

// What happens if a rank's disk fails when its run begins. At the first start, the run refuses, so that somebody repairs the
// disk. Later the run also has its state in memory, so the rank warns and continues: it reads what it can, and tries to write
// each copy.
enum class DiskFault { refuse, warn };

// The folder of a run in `local_dir`.
std::filesystem::path local_folder(const std::filesystem::path& local_dir, const std::filesystem::path& run_folder);
// Whether a run already keeps copies in its folder on this host.
bool keeps_copies_in(const std::filesystem::path& folder);

// A complete copy on this host's disk. It may belong to any rank.
struct LocalCopy {
  std::filesystem::path list;
  std::string timeline;
  std::int64_t step = 0;
  int rank = -1, ranks = 0;
  nlohmann::json parallel;  // [parallel] of its run
};
// Returns the copies in the folder of a run, or none if there is no such folder. Leaves out copies with an unusable list.
// Throws SystemError if the folder cannot be read.
std::vector<LocalCopy> local_copies(const std::filesystem::path& folder);
// Moves copies of steps after `step` to folder/history/, where no run reads or deletes them: those of this rank, and on rank 0's
// host those of ranks beyond `size`. Returns whether there were any. Throws SystemError; a second call moves the rest.
bool set_local_copies_aside(const std::filesystem::path& folder, int rank, int size, std::int64_t step);

class LocalSnapshots {
 public:
  // Makes a folder for the run in `local_dir`. Throws Error{config} if ranks on different hosts see the same files there, if it
  // belongs to another run of this name, or, with DiskFault::refuse, if it cannot be written. If the run of a folder was moved
  // away, another run may take the folder. Collective.
  LocalSnapshots(const std::filesystem::path& local_dir, const std::filesystem::path& run_folder, const Ranks& ranks,
                 DiskFault on_fault, double retry_s);

  // The folder of the files in manifests from find().
  const std::filesystem::path& folder() const { return folder_; }
  // Returns the lists of this rank's complete copies on `timeline`. With DiskFault::refuse, retries for retry_s if a copy
  // cannot be read. Calls on_warning with a line about each copy that is incomplete or still cannot be read, since other ranks
  // do not know. Throws NewerVersion if a later version of Octet wrote a copy.
  std::vector<Manifest> find(const std::string& timeline, const std::function<void(std::string_view)>& on_warning);

  // Writes a snapshot, `data` of a safetensors file, in place of the older copy, but never in place of the copy of step
  // `stays`. The manifest's slices may name any file. When it returns, the copy survives a power failure. Throws
  // Error{internal}.
  void keep(std::span<const std::byte> data, Manifest manifest, std::int64_t stays);
  // Call it when the run begins to keep copies. Deletes this rank's copies of other timelines and of steps after `step`. A copy
  // that cannot be read stays until a new one takes its place. Rank 0 also deletes, on its host, the copies of ranks that the
  // run no longer has. Throws Error{internal}.
  void go_on(const std::string& timeline, std::int64_t step);

 private:
  static constexpr std::size_t kCopies = 2;
  std::filesystem::path file(std::size_t copy, const char* suffix) const;
  void remove_higher_ranks() const;
  // Returns nothing if the copy is incomplete. Throws Error{data} if its list cannot be read.
  std::optional<Manifest> list_of(std::size_t copy);
  std::filesystem::path mark(int rank, const std::string& number) const;
  void make_folder() const;
  // Returns which other hosts see what this host writes here, or "". Collective.
  std::string strangers(const Ranks& ranks);
  // Calls a function and returns why it failed, or "". If a fault of the disk is only a warning, prints the warning once.
  std::string what_fails(const std::function<void()>& body);

  std::filesystem::path folder_, run_;
  DiskFault on_fault_;
  double retry_s_;
  bool warned_ = false;
  int rank_, size_;
  std::array<std::int64_t, kCopies> steps_ = {-1, -1};  // that this process has written or goes on from; -1: none
};

}  // namespace octet::checkpoint
