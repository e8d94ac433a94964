#include "octet/checkpoint/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <new>
#include <optional>
#include <system_error>
#include <vector>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = 4 << 20;  // summed while still in cache, then written

std::string slice_file(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  return name;
}

// Gives `bytes` bytes of a piece from `offset` on, until the next call.
using Source = std::function<std::span<const std::byte>(const Piece& piece, std::size_t offset, std::size_t bytes)>;

void write_slices(const fs::path& folder, int rank, Part& part, const Source& source) {
  if (part.pieces.empty()) return;
  SafetensorsWriter file(folder / slice_file(rank), part.declarations);
  RunningChecksum sum;
  for (const Piece& piece : part.pieces) {
    sum.reset();
    for (std::size_t offset = 0; offset < piece.bytes; offset += kChunkBytes) {
      const auto bytes = source(piece, offset, std::min(kChunkBytes, piece.bytes - offset));
      sum.update(bytes);
      file.write(bytes);
    }
    part.stored(piece).sum = sum.value();
  }
  file.finish();
}

void rename_directory(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(ExitCode::internal, to, "cannot rename");
}

// A new folder for unfinished work. The destructor deletes it with all files, unless keep() was called.
class UnfinishedFolder {
 public:
  // The name is new in every save, so that a rank of an ended run that still writes cannot write into another's folder.
  explicit UnfinishedFolder(const fs::path& step_directory) : path_(unfinished_name(step_directory)) { make_folders(path_); }
  ~UnfinishedFolder() {
    if (kept_) return;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;
  const fs::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool kept_ = false;
};

// Gives the folder the final name `to`. A folder that was there is deleted when the disk has the new name; if the disk refuses,
// it stays.
void replace_directory(UnfinishedFolder& folder, const fs::path& to) {
  const fs::path& from = folder.path();
  std::error_code ignored;
  if (!path_exists(to)) {
    rename_directory(from, to);
    return sync_directory(to.parent_path());
  }
  const auto exchange = [&] { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0; };
  if (exchange()) {
    try {
      sync_directory(to.parent_path());
    } catch (const Error& error) {
      if (exchange()) throw;
      folder.keep();
      fail_again(error, concat(error.what(), "; the older checkpoint of this step is ", from.string(), " until the next start"));
    }
    fs::remove_all(from, ignored);
    return;
  }
  // On a file system without exchange, a kill between the renames loses this step, and the previous checkpoint is used.
  const fs::path away = fs::path(from).concat(kReplaced);
  rename_directory(to, away);
  try {
    rename_directory(from, to);
  } catch (...) {
    ::rename(away.c_str(), to.c_str());
    throw;
  }
  sync_directory(to.parent_path());
  fs::remove_all(away, ignored);
}

// One save from this rank's point of view.
struct Save {
  std::string key;  // what is said about it
  std::int64_t step = 0;
  BestCheckpoint best;
  Part part;
  std::string failure;  // of this rank
};

bool contains(const std::vector<std::int64_t>& steps, std::int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

// Returns the checkpoints of `found` that retention does not keep, highest step first.
std::vector<StepDirectory> surplus_of(const WriterOptions& options, const std::vector<StepDirectory>& found, std::int64_t newest,
                                      const BestCheckpoint& best_ones) {
  const auto exists = [&](std::int64_t step) {
    return std::any_of(found.begin(), found.end(), [&](const StepDirectory& directory) { return directory.step == step; });
  };
  const auto best = std::find_if(best_ones.steps.begin(), best_ones.steps.end(), exists);
  std::vector<StepDirectory> result;
  std::int64_t newer = 0;
  for (const StepDirectory& directory : found) {
    const std::int64_t step = directory.step;
    const bool for_ever = options.keep_every > 0 && step % options.keep_every == 0;
    const bool extra = contains(best_ones.extra, step) && !for_ever;
    const bool surplus = extra || (options.keep_latest_k > 0 && newer++ >= options.keep_latest_k);
    const bool stays = for_ever || step == newest || (best != best_ones.steps.end() && step == *best);
    if (surplus && !stays) result.push_back(directory);
  }
  return result;
}

// Deletes checkpoints that need not be kept. The checkpoint of `newest` is already safe, so failures here are warnings.
void prune(const WriterOptions& options, std::int64_t newest, const BestCheckpoint& best_ones) {
  if (options.keep_latest_k <= 0 && best_ones.extra.empty()) return;
  try {
    for (const StepDirectory& directory : surplus_of(options, find_checkpoints(options.root), newest, best_ones)) {
      if (!options.in_use || !options.in_use(directory.step)) discard_checkpoint(directory.path);
    }
  } catch (const SystemError& error) {
    log_warning(concat(error.what(), "; no older checkpoint is deleted"));
  }
}

// Runs a function that may fail, unless something has failed before.
void attempt(std::string& failure, const std::function<void()>& act) {
  if (!failure.empty()) return;
  try {
    act();
  } catch (const std::bad_alloc&) {
    failure = concat("this host is ", kOutOfMemory);
  } catch (const std::exception& error) {
    failure = error.what();
  }
}

// Rank 0's share of a save; returns the failure of all ranks, and nothing is left of a save that failed.
std::string lead(const WriterOptions& options, Save& save, const Source& source) {
  const fs::path final_path = options.root / step_name(save.step);
  std::optional<UnfinishedFolder> folder;
  attempt(save.failure, [&] { folder.emplace(final_path); });
  broadcast(options.ranks, save.key + "/folder", folder ? folder->path().filename().string() : "");
  attempt(save.failure, [&] { write_slices(folder->path(), 0, save.part, source); });
  // Also when this rank has failed: the folder must not go while others write in it.
  std::string failure = failure_of(gather(options.ranks, save.key + "/failure", save.failure));
  const std::vector<std::string> texts = gather(options.ranks, save.key + "/part", "");
  attempt(failure, [&] {
    std::vector<Manifest> parts = {std::move(save.part.manifest)};
    for (std::size_t rank = 1; rank < texts.size(); ++rank) {
      parts.push_back(parse_manifest_part(texts[rank], concat("the part of rank ", rank)));
    }
    write_file_atomically(folder->path() / kManifestName, to_json(merge_manifests(std::move(parts))));
    if (options.may_publish) options.may_publish();
    replace_directory(*folder, final_path);
    if (options.published) options.published(save.step);
    prune(options, save.step, save.best);
  });
  return failure;
}

// The share of any other rank.
void follow(const WriterOptions& options, Save& save, const Source& source) {
  const std::string folder = broadcast(options.ranks, save.key + "/folder", "");
  if (!folder.empty()) {
    attempt(save.failure, [&] {
      // The name comes over the network, and must not lead out of the folder of checkpoints.
      demand(is_file_name(folder) && folder.rfind(step_name(save.step), 0) == 0, ExitCode::peer, "rank 0 writes into ",
             in_quotes(folder), ", which is not a folder of step ", save.step);
      write_slices(options.root / folder, options.ranks.rank, save.part, source);
    });
  }
  std::string part;
  attempt(save.failure, [&] { part = to_json(save.part.manifest); });
  gather(options.ranks, save.key + "/failure", save.failure);
  gather(options.ranks, save.key + "/part", part);
}

void write_checkpoint(const WriterOptions& options, Save& save, const Source& source) {
  std::string failure;
  try {
    if (options.ranks.rank == 0) {
      failure = lead(options, save, source);
    } else {
      follow(options, save, source);
    }
    failure = broadcast(options.ranks, save.key + "/outcome", failure);
  } catch (const Error& error) {
    fail_again(error, concat("while the checkpoint of step ", save.step, " was written: ", error.what()));
  }
  demand(failure.empty(), ExitCode::internal, "the checkpoint of step ", save.step, " is not saved: ", failure);
}

}  // namespace

Writer::Writer(WriterOptions options) : options_(std::move(options)) {
  if (options_.ranks.rank != 0) return;
  retry(kRetryS, [&] { make_folders(options_.root); });
  remove_unfinished(options_.root);
}

Writer::~Writer() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_shared_warning(error.what());
  }
}

void Writer::save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta,
                  const BestCheckpoint& best) {
  require(step >= 0 && meta.is_object(), "checkpoint: step ", step, ", meta must be an object");
  wait();
  if (stream.kind() == DeviceKind::meta) return;
  Save save = {.key = concat("save ", saves_++), .step = step, .best = best, .part = {}, .failure = ""};
  // A failure here is also a failure of all ranks, which are about to wait for this one.
  attempt(save.failure, [&] {
    save.part = describe_part(slice_file(options_.ranks.rank), step, entries);
    if (options_.ranks.rank == 0) save.part.manifest.meta = meta;
    std::size_t wanted = options_.mode == WriteMode::now ? kChunkBytes : 0;
    if (options_.mode == WriteMode::behind) wanted = save.part.bytes();
    if (wanted > snapshot_bytes_) {
      snapshot_bytes_ = 0;
      snapshot_.reset();
      snapshot_ = std::make_unique_for_overwrite<std::byte[]>(wanted);
      snapshot_bytes_ = wanted;
    }
    if (options_.mode == WriteMode::now) return;
    copy_pieces(stream, save.part.pieces, false, snapshot_.get());
    if (!copies_) copies_ = stream.device().make_stream();
    copies_->wait(*stream.record());
  });

  if (options_.mode == WriteMode::now) {
    write_checkpoint(options_, save, [&](const Piece& piece, std::size_t offset, std::size_t bytes) {
      stream.copy_to_host(snapshot_.get(), static_cast<const std::byte*>(piece.device) + offset, bytes);
      stream.synchronize();
      return std::span<const std::byte>(snapshot_.get(), bytes);
    });
    return;
  }
  std::promise<void> taken;
  snapshot_taken_ = taken.get_future();
  pending_ = start_or_run("the writer of checkpoints", [this, save = std::move(save), taken = std::move(taken)]() mutable {
    attempt(save.failure, [&] { copy_pieces(*copies_, save.part.pieces, true, snapshot_.get()); });
    taken.set_value();
    write_checkpoint(options_, save, [this](const Piece& piece, std::size_t offset, std::size_t bytes) {
      return std::span<const std::byte>(snapshot_.get() + piece.offset + offset, bytes);
    });
  });
}

void Writer::delete_surplus(std::int64_t step, const BestCheckpoint& best) {
  if (options_.ranks.rank == 0) prune(options_, step, best);
}

std::vector<std::int64_t> Writer::surplus_at(std::int64_t step, const BestCheckpoint& best) const {
  std::vector<StepDirectory> found = find_checkpoints(options_.root);
  found.insert(found.begin(), {step, options_.root / step_name(step)});
  std::vector<std::int64_t> steps;
  for (const StepDirectory& surplus : surplus_of(options_, found, step, best)) steps.push_back(surplus.step);
  return steps;
}

void Writer::wait_for_snapshot() {
  if (snapshot_taken_.valid()) snapshot_taken_.wait();
}

void Writer::wait() {
  if (pending_.valid()) pending_.get();
}

bool Writer::busy() const { return pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }

}  // namespace octet::checkpoint
