// One writer for a run folder. The file run.lock says who writes there; it works on one machine and on several that share a file
// system, also where locks of the system (flock) do not cross machines.
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
  double renewed_s = 20;  // a holder that could not do so for this long publishes nothing
  double silence_s = 30;  // a holder elsewhere has ended if its counter stands still for this long on the clock of who watches
  double settle_s = 1;    // after such a takeover, for another process elsewhere that did the same at the same moment
  double retry_s = 60;    // how long the constructor goes on reading after an error that may pass
};

// The attempt of a supervised job that a process is a rank of; none without a supervisor. A later attempt of the same job takes
// the lock over at once, wherever the holder is, because only one supervisor gets a number (telemetry/attempts.h).
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
};
// Reads the lock file of the folder and returns who holds the lock. Returns nothing if there is no lock, or no name in it yet.
// Throws SystemError if the file cannot be read.
std::optional<LockHolder> lock_holder(const std::filesystem::path& folder);

// Removes the lock of this process, if it holds one, for a signal handler that ends the process without destructors.
void abandon_run_lock() noexcept;

// Holds the lock from construction to destruction; a thread raises the counter. Where the holder before
// - still runs on this machine, the constructor throws Error{config} at once, with its host, process id and start;
// - has ended on this machine, it takes the folder over at once and says so;
// - is on another machine or in another container, it watches the counter. If the counter grows, it throws Error{config}. If the
//   counter stands still for silence_s, it takes the folder over and says so.
class RunLock {
 public:
  // Makes the folder if need be. Throws Error{config} as above, if nothing can be written under this path (create_output), and if
  // run.lock is a link that leads nowhere; Error{internal} or Error{data} "PATH: REASON" if the lock cannot be written or read
  // for another reason.
  explicit RunLock(const std::filesystem::path& folder, RunLockTimes times = {}, LockAttempt attempt = {});
  // Removes run.lock, if it is still this holder's, and the folder if it is empty and the constructor made it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Throws Error{config} if another has taken the folder over, as the thread has noticed. Reads no file, so that a slow disk does
  // not hold training up.
  void check() const;
  // To be called before a checkpoint is published. Raises the counter. Throws as check() does, and Error{internal} if the counter
  // could not be raised for renewed_s, or if another file system is now where the folder was: what this run writes would not be
  // found when the first one is mounted again.
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
