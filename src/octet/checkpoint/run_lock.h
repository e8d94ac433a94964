// One writer for a run folder. The file run.lock says which process writes there. It works on one machine and on several that
// share a file system, even if the system's locks (flock) do not cross machines.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "octet/base/clock.h"
#include "octet/base/process_identity.h"

namespace octet::checkpoint {

struct RunLockTimes {
  double beat_s = 5;      // how often the holder raises its counter
  double renewed_s = 20;  // a holder that could not raise it for this long publishes nothing
  double silence_s = 30;  // a holder elsewhere has ended if its counter did not grow for this long
  double settle_s = 1;    // pause after a takeover, in case another process took over at the same moment
  double retry_s = 60;    // how long the constructor retries reads after an error that may pass
};

// The attempt of a supervised job to which this process belongs; none without a supervisor. A later attempt of the same job
// takes the lock over at once, wherever the holder is, because only one supervisor gets a number (telemetry/attempts.h).
struct LockAttempt {
  std::string job;
  std::int64_t number = 0;
  bool follows(const LockAttempt& earlier) const { return !job.empty() && job == earlier.job && number > earlier.number; }
};

struct LockHolder {
  ProcessIdentity process;
  std::string since;  // UTC
  std::string run;    // a random number that tells holders apart
  LockAttempt attempt;
  std::int64_t counter = 0;  // grows as long as the holder runs
  std::optional<int> code;   // the exit code of a holder that has called end_run_lock()
};
// Reads the lock file of the folder and returns the holder of the lock. Returns nothing if there is no lock, or if it does not
// name a holder yet. Throws SystemError if the file cannot be read.
std::optional<LockHolder> lock_holder(const std::filesystem::path& folder);

// Removes the lock of this process, if it holds one. For a signal handler that ends the process without running destructors.
void abandon_run_lock() noexcept;
// Writes the exit code of this process into its lock, if it holds one. For a signal handler that ends the process in the middle
// of a run.
void end_run_lock(int code) noexcept;

// Holds the lock from construction to destruction. A thread raises the counter. If the previous holder
//- still runs on this machine, the constructor throws Error{config} at once, with the holder's host, process id and start;
//- has ended on this machine, the constructor takes the folder over at once and says so;
//- is on another machine or in another container, the constructor watches the counter. If the counter grows, it throws
//  Error{config}. If the counter does not grow for silence_s, it takes the folder over and says so.
class RunLock {
 public:
  // Makes the folder if necessary. Throws Error{config} as above, if nothing can be written under this path (create_output),
  // and if run.lock is a link that leads nowhere; Error{internal} or Error{data} "PATH: REASON" if the lock cannot be written
  // or read for another reason.
  explicit RunLock(const std::filesystem::path& folder, RunLockTimes times = {}, LockAttempt attempt = {});
  // Removes run.lock, if it is still this holder's, and the folder if it is empty and the constructor made it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Throws Error{config} if the thread has noticed that another process has taken the folder over. Reads no file, so that a
  // slow disk does not delay training.
  void check() const;
  // Call it before a checkpoint is published. Raises the counter. Throws like check(). Throws Error{internal} if the counter could
  // not be raised for renewed_s, and if the folder now lies on another file system: what this run writes there would not be found
  // when the first one is mounted again.
  void renew();

 private:
  void acquire();
  bool create();
  bool replace(const std::string& seen, bool settles);
  void watch(const std::string& seen) const;
  void write(int fd);
  // Whether the path leads to another file system than when the lock was taken.
  bool is_moved() const;
  void beat();
  void keep_beating();
  std::string text() const;

  std::filesystem::path folder_, path_;
  RunLockTimes times_;
  LockAttempt attempt_;
  std::string begin_;  // of the file's text, the same for as long as the lock is held
  bool made_folder_ = false;
  int fd_ = -1;
  std::optional<dev_t> device_;  // of the folder, when the lock was taken
  bool moved_ = false;           // at the last beat
  std::int64_t counter_ = 0;

  mutable std::mutex mutex_;
  Clock::time_point renewed_;
  std::string trouble_;  // why the counter was not raised the last time
  std::string lost_to_;  // who holds the folder now
  std::atomic<bool> lost_ = false;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace octet::checkpoint
