// Copies of checkpoints in S3: checkpoint.remote.
//
//   PREFIX/step-00001000-<sum>/rank-00000.safetensors, ...   the files of the checkpoint
//   PREFIX/step-00001000-<sum>/manifest.json                 goes last: without it there is no checkpoint
//   PREFIX/step-00001000-<sum>/abandoned                     the run went back before this step, or began anew
//
// <sum> is the XXH3-64 of manifest.json, which holds the sums of all tensors. So a name stands for one content: no object is ever
// overwritten, and an upload that was interrupted is continued by whoever sends the same checkpoint again. A checkpoint whose
// name is abandoned gets the sum of the manifest and "again", and so on. Nothing is deleted.
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

// The complete checkpoints below `url`, the highest step first; of one step the one that was written last. Throws StoreError.
std::vector<RemoteCheckpoint> remote_checkpoints(storage::ObjectStore& store, const storage::ObjectUrl& url);

// Copies the files of a checkpoint that are not there yet, its manifest last. The files of the folder `beside`, if it exists, go
// into the same folder of the bucket, unless files of these names are there. `sent` is told now and then that bytes were sent;
// what it throws ends the call. Throws StoreError and the errors of files.
void send_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t step,
                     const std::filesystem::path& folder, const std::function<void()>& sent = {},
                     const std::filesystem::path& beside = {});

// Copies the checkpoint to root/step-00001000, which must not exist, checks the sums of all its tensors, and then gives it that
// name. A copy that was interrupted is continued. Throws Damaged, StoreError and the errors of files.
void fetch_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& url, const RemoteCheckpoint& from,
                      const std::filesystem::path& root, const storage::CopyProgress& progress = {});

// Marks the checkpoints of later steps as abandoned. Throws StoreError.
void abandon_checkpoints(storage::ObjectStore& store, const storage::ObjectUrl& url, std::int64_t after_step);

// The steps beyond `after`, up to `last`, that a run has left by going back.
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
  // Keeps a wish across processes. It is called with the steps whose checkpoints are to be marked as abandoned, and by the thread
  // without steps when all are marked. If the process ends between the two, the next one calls abandon() with these steps.
  std::function<void(const std::optional<AbandonedSteps>& steps)> remember = {};
};

// Sends checkpoints behind training, on a thread. One waits at most: if training is faster, checkpoints between are left out.
class RemoteCopies {
 public:
  // `newest` is the newest one there, for messages.
  RemoteCopies(RemoteOptions options, std::optional<RemoteCheckpoint> newest);
  // Gives up what is under way.
  ~RemoteCopies();
  RemoteCopies(const RemoteCopies&) = delete;
  RemoteCopies& operator=(const RemoteCopies&) = delete;

  // Returns at once. The folder must stay until uses() says no. A failure is a warning with the age of the newest checkpoint
  // there, and the newest checkpoint is sent again after `again_s`.
  void copy(std::int64_t step, std::filesystem::path folder);
  // Checkpoints of steps after `steps.after` are marked before the next one is sent. Throws what RemoteOptions::remember throws.
  void abandon(AbandonedSteps steps);
  bool uses(std::int64_t step) const;
  // Waits until nothing is to be sent, or what is to be sent has failed once more. Returns why the newest checkpoint is not
  // there, or "".
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
