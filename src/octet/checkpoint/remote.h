// Copies of checkpoints in S3: checkpoint.remote.
//
//   PREFIX/step-00001000-<sum>/rank-00000.safetensors, ...   the files of the checkpoint
//   PREFIX/step-00001000-<sum>/manifest.json                 written last: without it there is no checkpoint
//   PREFIX/step-00001000-<sum>/abandoned                     the run went back before this step, or began anew
//
// <sum> is the XXH3-64 of manifest.json, which holds the sums of all tensors. So a name stands for one content: no object is
// ever overwritten, and sending the same checkpoint again continues an interrupted upload. If the name of a checkpoint is
// abandoned, <sum> is computed from the manifest followed by "again", and so on. Nothing is deleted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "octet/storage/local_copy.h"

namespace octet::checkpoint {

struct RemoteCheckpoint {
  std::int64_t step = 0;
  std::string name;                               // "step-00001000-0123456789abcdef"
  std::chrono::system_clock::time_point written;  // by the clock of the service
  bool abandoned = false;
  std::vector<storage::ListedObject> files;  // their names in its folder
};

// Returns the complete checkpoints below `url`, the highest step first. If a step has several, returns the one that was written
// last. Throws StoreError.
std::vector<RemoteCheckpoint> remote_checkpoints(storage::ObjectStore& store, const storage::ObjectUrl& url);

// Copies the files of a checkpoint that are not there yet, its manifest last. Also copies the files of the folder `beside`, if
// it exists, into the same folder of the bucket, unless files with these names are there. Calls `sent` now and then while bytes
// are sent; an exception from it ends the call. Throws StoreError and the errors of files.
void send_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t step,
                     const std::filesystem::path& folder, const std::function<void()>& sent = {},
                     const std::filesystem::path& beside = {});

// Copies the checkpoint to an unfinished name next to root/step-00001000, which must not exist, checks the sums of all its
// tensors, and then renames it. Continues an interrupted copy. Throws Damaged, StoreError and the errors of files.
void fetch_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& url, const RemoteCheckpoint& from,
                      const std::filesystem::path& root, const storage::CopyProgress& progress = {});

// Marks the checkpoints of later steps as abandoned. Throws StoreError.
void abandon_checkpoints(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t after_step);

// The steps above `after`, up to `last`, that a run has abandoned by going back.
struct AbandonedSteps {
  std::int64_t after = 0, last = 0;
};

struct RemoteOptions {
  storage::ObjectUrl url;
  std::filesystem::path beside = {};                   // as for send_checkpoint()
  double retry_s = kRetryS;                            // how long a request is tried again
  double again_s = 60;                                 // after which an upload that failed begins again
  std::function<void()> alive = {};                    // called while bytes are sent, by any thread
  std::function<void(std::int64_t step)> copied = {};  // called by the thread when a checkpoint is complete there
  // Makes an intention survive the end of this process. Called with the steps whose checkpoints are to be marked as abandoned,
  // and, by the thread, without steps when all are marked. If the process ends between the two calls, the next process calls
  // abandon() with these steps.
  std::function<void(const std::optional<AbandonedSteps>& steps)> remember = {};
};

// Sends checkpoints on a thread, in the background of training. At most one checkpoint waits: if training is faster, some
// checkpoints are left out.
class RemoteCopies {
 public:
  // `newest` is the newest checkpoint there, for messages.
  RemoteCopies(RemoteOptions options, std::optional<RemoteCheckpoint> newest);
  // Cancels the current upload.
  ~RemoteCopies();
  RemoteCopies(const RemoteCopies&) = delete;
  RemoteCopies& operator=(const RemoteCopies&) = delete;

  // Returns at once. The folder must stay until uses() returns false. A failure causes a warning with the age of the newest
  // checkpoint there, and the newest checkpoint is sent again after `again_s`.
  void copy(std::int64_t step, std::filesystem::path folder);
  // Marks checkpoints of steps after `steps.after` before the next one is sent. Throws what RemoteOptions::remember throws.
  void abandon(AbandonedSteps steps);
  bool uses(std::int64_t step) const;
  // Waits until nothing is left to send, or sending has failed again. Returns why the newest checkpoint is not there, or
  // "".
  std::string wait();

 private:
  struct Checkpoint {
    std::int64_t step;
    std::filesystem::path folder;
  };
  void run();
  void attempt(const std::optional<AbandonedSteps>& abandoned, const std::optional<Checkpoint>& sent);
  void forget_abandoned();
  std::string age_of_newest() const;

  RemoteOptions options_;
  storage::ObjectStore store_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::optional<AbandonedSteps> abandoned_;  // to be marked
  std::int64_t abandons_ = 0;                // calls of abandon()
  std::optional<Checkpoint> waiting_, sending_;
  std::string failure_;  // of the last attempt
  std::optional<RemoteCheckpoint> newest_;
  int waiters_ = 0;
  bool busy_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // started by the first call that needs it
};

}  // namespace octet::checkpoint
