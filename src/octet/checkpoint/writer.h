// Writes checkpoints: named slices of global tensors and a JSON object. A checkpoint is either complete or absent, whatever
// happens to any process.
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

// Part of the message about a save that failed because a host had no memory for it.
inline constexpr std::string_view kOutOfMemory = "out of memory";

// The steps of the best checkpoints, which affect the deletion of old checkpoints.
struct BestCheckpoint {
  std::vector<std::int64_t> steps = {};  // best first; the first that exists stays, whatever else is kept
  // Steps that were saved only because they were the best at that time. They do not count among keep_latest_k, and are deleted
  // when another one is the best.
  std::vector<std::int64_t> extra = {};
};

struct WriterOptions {
  std::filesystem::path root;      // .../checkpoints, made if need be; on many ranks in a file system that all of them see
  std::int64_t keep_latest_k = 3;  // 0: all
  std::int64_t keep_every = 0;     // checkpoints of steps that are multiples of this stay for ever; 0: none
  WriteMode mode = WriteMode::behind;
  Ranks ranks = {};  // all else is the same on every rank
  // Rank 0 calls `may_publish` before a checkpoint gets its name; if it throws, the save fails. It calls `published` when the
  // checkpoint is on the disk. The writing thread may call both.
  std::function<void()> may_publish = {};
  std::function<void(std::int64_t step)> published = {};
  // Whether a checkpoint is being read, so that it must not be deleted now. The next save asks again.
  std::function<bool(std::int64_t step)> in_use = {};
};

// A checkpoint is written as step-00001000.tmp-TOKEN and synced, its manifest last. It is then renamed; if there is an older
// checkpoint of the same step, the two are exchanged. After that, checkpoints are deleted except the keep_latest_k highest
// steps, those of keep_every, the best one and the one just written. A checkpoint is renamed before it is deleted, and nothing
// is deleted if the folder cannot be listed. There may be only one writer per root, which RunLock ensures.
//
// On several ranks, each rank has a Writer and makes the same calls in the same order. Each writes the slices that it holds to
// its own file. Rank 0 makes the folder, writes the manifest when all ranks have said that their file is on the disk, renames,
// deletes, and tells the others the result. No other rank makes, renames or deletes a folder, so no constructor needs to wait
// for another.
class Writer {
 public:
  // Rank 0 makes the root and removes what killed runs left half-written in it. Throws Error{internal} "PATH: reason".
  explicit Writer(WriterOptions options);
  // Waits. A failure that no call has thrown becomes a warning.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Waits for the previous save and throws its failure, if any, instead of saving: call again to save. When it returns, entries
  // that are not steady may change. Steady entries may change after wait_for_snapshot(). Failures (a full disk, slices that do
  // not cover their tensor) throw Error{internal}, one line: here with WriteMode::now, otherwise from the next save or wait. A
  // failed checkpoint is removed and the older ones stay, so training may go on. There is one exception: a complete checkpoint
  // whose folder cannot be flushed to the disk counts as failed but stays, because only a power cut would remove it. Every rank
  // reports the failure of one rank, with that rank's number. If a rank is lost, the error is the store's Error{peer}, and an
  // incomplete checkpoint may be left to the constructor of the next run. `entries` are the slices that this rank holds,
  // perhaps none. `meta` must be an object; rank 0's `meta` and `best` are used. Does nothing on the meta device.
  void save(std::int64_t step, Stream& stream, std::span<const Entry> entries, const nlohmann::json& meta,
            const BestCheckpoint& best = {});
  // Deletes the old checkpoints that a run left because it was killed between the save of `step` and their deletion. With them,
  // a rollback would go further back than in a run that was never killed. Call it after `step` has been loaded.
  void delete_surplus(std::int64_t step, const BestCheckpoint& best);
  // Returns the steps of the checkpoints that the save of `step` will delete, highest first. Throws like find_checkpoints().
  std::vector<std::int64_t> surplus_at(std::int64_t step, const BestCheckpoint& best) const;
  // Returns when this rank's snapshot is complete, so that all entries of the last save may change. Does not throw: if the copy
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
