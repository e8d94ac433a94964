#include "octet/checkpoint/local_snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/process_identity.h"
#include "octet/base/require.h"
#include "octet/base/retry.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/snapshot_slot.h"
#include "octet/checkpoint/steps.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwner = "run.txt";  // in the folder of a run: its run folder

// The rank of a file "rank-00003.0.json", or nothing.
std::optional<int> rank_of(const fs::path& file) {
  int rank = -1;
  return std::sscanf(file.filename().c_str(), "rank-%d.", &rank) == 1 && rank >= 0 ? std::optional(rank) : std::nullopt;
}

fs::path data_of(const fs::path& list) { return fs::path(list).replace_extension("safetensors"); }

std::string own_host() {
  const ProcessIdentity mine = ProcessIdentity::mine();
  return concat(mine.host, " ", mine.machine, " ", mine.boot);
}

}  // namespace

// Returns, for example, "kept-1a2b3c4d". Two run folders with the same name get different folders.
fs::path local_folder(const fs::path& local_dir, const fs::path& run_folder) {
  const fs::path run = true_path(run_folder);
  RunningChecksum sum;
  sum.update(run.string());
  return local_dir / concat(run.filename().string(), "-", sum.hex().substr(0, 8));
}

bool keeps_copies_in(const fs::path& folder) { return path_exists(folder / kOwner); }

std::vector<LocalCopy> local_copies(const fs::path& folder) {
  std::vector<LocalCopy> copies;
  if (!path_exists(folder)) return copies;
  for (const fs::path& path : entries_of(folder)) {
    if (!rank_of(path) || path.extension() != ".json") continue;
    try {
      const Manifest manifest = parse_manifest_part(read_file(path), path.string());
      copies.push_back({.list = path,
                        .timeline = manifest.meta.value("timeline", ""),
                        .step = manifest.step,
                        .rank = manifest.meta.value("rank", -1),
                        .ranks = manifest.meta.value("ranks", 0),
                        .parallel = manifest.meta.at("run").at("config").at("parallel")});
    } catch (const std::exception&) {  // find() warns of it on its rank
    }
  }
  return copies;
}

bool set_local_copies_aside(const fs::path& folder, int rank, int size, std::int64_t step) {
  bool any = false;
  for (const LocalCopy& copy : local_copies(folder)) {
    if (copy.step <= step || (copy.rank != rank && !(rank == 0 && copy.rank >= size))) continue;
    std::string name = concat(step_name(copy.step), "-", copy.timeline);
    std::replace(name.begin(), name.end(), '/', '-');
    const fs::path to = folder / "history" / name;
    make_folders(to);
    for (const fs::path& file : {data_of(copy.list), copy.list}) {
      if (path_exists(file) && std::rename(file.c_str(), (to / file.filename()).c_str()) != 0)
        fail_errno(ExitCode::internal, file, "cannot be moved to " + to.string());
    }
    sync_directory(to);
    any = true;
  }
  if (any) sync_directory(folder);
  return any;
}

LocalSnapshots::LocalSnapshots(const std::filesystem::path& local_dir, const std::filesystem::path& run_folder,
                               const Ranks& ranks, DiskFault on_fault, double retry_s)
    : on_fault_(on_fault), retry_s_(on_fault == DiskFault::refuse ? retry_s : 0), rank_(ranks.rank), size_(ranks.size) {
  std::string failure = what_fails([&] {
    run_ = true_path(run_folder);
    folder_ = local_folder(local_dir, run_folder);
    make_folder();
  });
  failure = common_failure(ranks, "local folder", failure);
  demand(failure.empty(), ExitCode::config, "checkpoint.local_dir = ", local_dir.string(), ": ", failure);
  failure = strangers(ranks);
  demand(failure.empty(), ExitCode::config, "checkpoint.local_dir = ", local_dir.string(), ": ", failure);
}

std::string LocalSnapshots::what_fails(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    if (on_fault_ == DiskFault::refuse || !dynamic_cast<const SystemError*>(&error)) return error.what();
    if (!std::exchange(warned_, true))
      log_warning(concat(error.what(), "; checkpoint.local_dir may hold no new copy of this rank's snapshots"));
  }
  return "";
}

void LocalSnapshots::make_folder() const {
  make_folders(folder_);
  const fs::path owner = folder_ / kOwner;
  if (!path_exists(owner)) return;
  const std::string other = read_file(owner);
  demand(other == run_.string() || other.empty() || !path_exists(other), ExitCode::config, folder_.string(),
         " belongs to the run in ", other);
}

// Each rank leaves a mark file. Its name is new, so that no cache of a network file system knows it.
std::string LocalSnapshots::strangers(const Ranks& ranks) {
  const std::string number = broadcast(ranks, "local mark", concat(std::random_device{}()));
  const std::filesystem::path mine = mark(rank_, number);
  std::string failure = what_fails([&] { write_file_atomically(mine, own_host()); });
  if (common_failure(ranks, "local marks", failure).empty()) {
    failure = what_fails([&] {
      for (int other = 0; other < size_; ++other) {
        if (!path_exists(mark(other, number))) continue;
        const std::string host = read_file(mark(other, number)), here = own_host();
        demand(host == here, ExitCode::config, "the hosts ", here.substr(0, here.find(' ')), " and ",
               host.substr(0, host.find(' ')),
               " see the same files there; it must be on a disk that each host has for itself. Without it, "
               "checkpoint.replicas and checkpoints protect the run");
      }
    });
  }
  failure = common_failure(ranks, "local strangers", failure);  // all have looked
  const std::string removal = what_fails([&] { remove_tree(mine); });
  return failure.empty() ? common_failure(ranks, "local removal", removal) : failure;
}

std::filesystem::path LocalSnapshots::mark(int rank, const std::string& number) const {
  return folder_ / concat("mark-", number, "-", rank);
}

std::filesystem::path LocalSnapshots::file(std::size_t copy, const char* suffix) const {
  return folder_ / fmt::format("rank-{:05}.{}.{}", rank_, copy, suffix);
}

std::optional<Manifest> LocalSnapshots::list_of(std::size_t copy) {
  const std::filesystem::path list = file(copy, "json");
  try {
    return retry(retry_s_, [&] {
      return path_exists(list) ? std::optional(parse_manifest_part(read_file(list), list.string())) : std::nullopt;
    });
  } catch (const SystemError&) {
    retry_s_ = 0;  // a disk that is broken holds the run up once
    throw;
  }
}

std::vector<Manifest> LocalSnapshots::find(const std::string& timeline, const std::function<void(std::string_view)>& on_warning) {
  std::vector<Manifest> found;
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    const std::filesystem::path data = file(copy, "safetensors");
    try {
      if (std::optional<Manifest> manifest = list_of(copy)) {
        if (is_of(*manifest, timeline, rank_, size_)) found.push_back(*std::move(manifest));
      } else if (path_exists(data)) {
        on_warning(concat(data.string(), ": this copy of a snapshot is not complete; its rank ended while it was written"));
      }
    } catch (const NewerVersion&) {
      throw;
    } catch (const Error& error) {
      on_warning(concat("this copy of a snapshot cannot be used: ", error.what()));
    }
  }
  return found;
}

void LocalSnapshots::keep(std::span<const std::byte> data, Manifest manifest, std::int64_t stays) {
  const std::size_t copy = slot_to_fill(steps_, stays);
  const std::filesystem::path list = file(copy, "json"), path = file(copy, "safetensors");
  steps_[copy] = -1;
  remove_tree(list);
  FileWriter writer(path);
  writer.write(data);
  writer.finish();
  for (auto& [name, tensor] : manifest.tensors) {
    for (StoredSlice& slice : tensor.slices) slice.file = path.filename().string();
  }
  write_file_atomically(list, to_json(manifest));
  sync_directory(folder_);
  steps_[copy] = manifest.step;
}

void LocalSnapshots::go_on(const std::string& timeline, std::int64_t step) {
  const fs::path owner = folder_ / kOwner;
  if (!path_exists(owner) || read_file(owner) != run_.string()) write_file_atomically(owner, run_.string());
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    steps_[copy] = -1;
    std::optional<Manifest> manifest;
    try {
      manifest = list_of(copy);
    } catch (const Error&) {  // find() has told
      continue;
    }
    if (manifest && is_of(*manifest, timeline, rank_, size_) && manifest->step <= step) {
      steps_[copy] = manifest->step;
      continue;
    }
    remove_tree(file(copy, "json"));
    remove_tree(file(copy, "safetensors"));
  }
  if (rank_ == 0) remove_higher_ranks();
}

// A run with fewer ranks cannot use their copies.
void LocalSnapshots::remove_higher_ranks() const {
  for (const std::filesystem::path& path : entries_of(folder_)) {
    if (rank_of(path).value_or(-1) >= size_) remove_tree(path);
  }
}

}  // namespace octet::checkpoint
