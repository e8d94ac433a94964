// Writes checkpoints: named slices of global tensors and a JSON object, complete or absent whatever happens to any process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/checkpoint/part.h"
#include "octet/checkpoint/ranks.h"
#include "octet/device/device.h"

namespace octet::checkpoint {

enum class WriteMode : std::uint8_t {
  // A thread copies to host memory, the snapshot, which is allocated once and reused, and writes it. If the thread cannot start,
  // save() does this itself: the other ranks wait for this one.
  behind,
  now,  // save writes, and returns when the checkpoint is there
};

// Stands in the message about a save that failed because a host had no memory for it.
inline constexpr std::string_view kOutOfMemory = "out of memory";

// What the deletion of old checkpoints must know about the best one.
struct BestCheckpoint {
  std::vector<std::int64_t> steps = {};  // best first; the first that exists stays, whatever else is kept
  // Saved only because they were the best when they were saved. They do not count among keep_latest_k, and go when another one is
  // the best.
  std::vector<std::int64_t> extra = {};
};

struct WriterOptions {
  std::filesystem::path root;      // .../checkpoints, made if need be; on many ranks in a file system that all of them see
  std::int64_t keep_latest_k = 3;  // 0: all
  std::int64_t keep_every = 0;     // checkpoints of steps that are multiples of this stay for ever; 0: none
  WriteMode mode = WriteMode::behind;
  Ranks ranks = {};  // all else is the same on every rank
  // Rank 0 calls `may_publish` before a checkpoint gets its name: what it throws fails the save. It calls `published` when the
  // checkpoint is on the disk. Both may be called by the thread that writes.
  std::function<void()> may_publish = {};
  std::function<void(std::int64_t step)> published = {};
  // Whether the checkpoint of a step is being read, so that it must not be deleted now. The next save asks again.
  std::function<bool(std::int64_t step)> in_use = {};
};

// A checkpoint is written as step-00001000.tmp-TOKEN, synced, its manifest last, and renamed last; an older one of the same
// step is exchanged for it. After that the checkpoints beyond the keep_latest_k highest steps go, except those of keep_every, the
// best and the one just written; whatever is deleted is renamed away first, and nothing is deleted if the folder cannot be
// listed. One writer per root: RunLock sees to it.
//
// Many ranks have a Writer each and make the same calls in the same order. Each writes the slices that it holds to a file of
// its own; rank 0 makes the folder, writes the manifest when all ranks have said that their file is on the disk, renames,
// deletes, and tells the others what became of it. Nobody else makes, renames or deletes a folder, so no constructor needs to
// wait for another.
class Writer {
 public:
  // Rank 0 makes the root and removes what killed runs left half-written in it. Throws Error{internal} "PATH: reason".
  explicit Writer(WriterOptions options);
  // Waits; a failure that nobody asked for becomes a warning.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Waits for the save before and throws its failure, if any, instead of saving: call again to save. When it returns, entries
  // that are not steady may change. Steady entries may change after wait_for_snapshot(). Failures (a full disk, slices that do
  // not cover) throw Error{internal}, one line: here with WriteMode::now, otherwise from the next save or wait; nothing of a
  // failed checkpoint stays behind, the older ones stay, and training may go on. Only a complete checkpoint whose folder cannot
  // be flushed to the disk fails and stays: a power cut may take it. A failure of one rank is told on every rank, with its
  // number. When a rank is lost the error is the store's, Error{peer}, and what lies half-written may be left to the constructor
  // of the next run. `entries` are the slices that this rank holds, perhaps none. `meta` must be an object; rank 0's is kept, and
  // so is its `best`. On the meta device nothing happens.
  void save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta,
            const BestCheckpoint& best = {});
  // Deletes the old checkpoints that a run left when it was killed between the save of `step` and their deletion. A rollback would
  // go further back to them than in a run that was never killed. Call it after `step` has been loaded.
  void delete_surplus(std::int64_t step, const BestCheckpoint& best);
  // Returns the steps of the checkpoints that the save of `step` will delete, highest first. Throws as find_checkpoints().
  std::vector<std::int64_t> surplus_at(std::int64_t step, const BestCheckpoint& best) const;
  // Returns when this rank's snapshot is complete, so that all entries of the last save may change. Throws nothing: if the copy
  // failed, the save fails.
  void wait_for_snapshot();
  // Returns when the last save of all ranks is on the disk, or throws its failure, once.
  void wait();
  // Whether a save is still being written.
  bool busy() const;

 private:
  WriterOptions options_;
  std::unique_ptr<std::byte[]> snapshot_;
  std::size_t snapshot_bytes_ = 0;
  std::int64_t saves_ = 0;          // begun, failed ones included: the same on every rank
  std::unique_ptr<Stream> copies_;  // on which the thread copies steady entries while the caller's stream computes
  std::future<void> snapshot_taken_;
  std::future<void> pending_;
};

}  // namespace octet::checkpoint
