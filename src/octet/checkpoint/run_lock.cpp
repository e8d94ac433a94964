#include "octet/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/base/signals_held.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"
#include "octet/base/utc.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestText = 1 << 16;  // a longer file is not a lock that this program wrote
constexpr double kLookS = 0.25;                // between two looks at somebody else's counter
constexpr int kRuns = -1;                      // the code in the lock of a process that has not ended
// The counter and the code have fixed widths, so that overwriting them changes nothing else, and a reader never sees half a text.
constexpr char kRest[] = ",\"counter\":%20" PRId64 ",\"code\":%3d}\n";
constexpr std::size_t kCodeDigits = 3, kCodeFromEnd = kCodeDigits + 2;  // the code's first character, from the end of the text

// Returns nothing if the text is not a lock, for example while its file is being written.
std::optional<LockHolder> holder_of(const std::string& text) {
  const Json json = json_of(text);
  if (!json.is_object()) return std::nullopt;
  const auto string = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  const auto number = [&](const char* key) {
    return json.contains(key) && json[key].is_number_integer() ? json[key].get<std::int64_t>() : 0;
  };
  const std::int64_t code = json.contains("code") ? number("code") : kRuns;
  return LockHolder{.process = {.host = string("host"),
                                .machine = string("machine"),
                                .boot = string("boot"),
                                .pid_namespace = string("pid_namespace"),
                                .pid = number("pid"),
                                .start_ticks = number("start_ticks")},
                    .since = string("since"),
                    .run = string("run"),
                    .attempt = {.job = string("job"), .number = number("attempt")},
                    .counter = number("counter"),
                    .code = code >= 0 ? std::optional(static_cast<int>(code)) : std::nullopt};
}

std::string describe(const std::optional<LockHolder>& holder) {
  if (!holder) return "a process that has written no name";
  return concat("process ", holder->process.pid, " on ", holder->process.host, ", since ", holder->since);
}

// "" if the file does not exist.
std::string text_of(const fs::path& path, double retry_s) {
  return retry(retry_s, [&]() -> std::string {
    try {
      const FileReader file(path);
      std::string text(std::min(file.size(), kLongestText), '\0');
      file.read_at(0, std::as_writable_bytes(std::span(text)));
      return text.empty() ? " " : text;  // there, but not written yet
    } catch (const SystemError& error) {
      if (error.not_there()) return "";
      throw;
    }
  });
}

// While an object lives, no other process of this machine creates, replaces or removes the lock. On a file system without such
// locks, a small window remains, which text_of() closes by checking afterwards.
class FolderGuard {
 public:
  explicit FolderGuard(const fs::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
  }
  ~FolderGuard() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;

 private:
  int fd_;
};

// The file system on which the folder lies. Nothing if nobody knows, as while storage is away.
std::optional<dev_t> device_of(const fs::path& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? std::optional(status.st_dev) : std::nullopt;
}

// Removes what replace() leaves when it is killed. A file that does not name its process, or a process of another machine, stays:
// somebody may be about to rename it.
void remove_interrupted_takeovers(const fs::path& lock) {
  const std::string begin = lock.filename().string() + ".";
  std::error_code error;  // what stays only takes room
  fs::directory_iterator entry(lock.parent_path(), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(begin)) continue;
    try {
      const std::optional<LockHolder> holder = holder_of(text_of(entry->path(), 0));
      std::error_code ignored;
      if (holder && fate_of(holder->process) == Fate::ended) fs::remove(entry->path(), ignored);
    } catch (const Error&) {
    }
  }
}

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The data that abandon_run_lock() needs about the lock that this process took last. A signal handler may not allocate memory.
struct HeldLock {
  char path[PATH_MAX], folder[PATH_MAX], begin[1024];
  std::size_t begin_size, size;  // of the unchanging begin, and of the whole text
  bool made_folder;
};
HeldLock held_lock;
std::atomic<int> code_of_process = kRuns;
std::atomic<bool> lock_is_held = false;  // held_lock is complete
static_assert(std::atomic<bool>::is_always_lock_free, "a handler may not wait for a lock");

void tell_handlers(const fs::path& folder, const std::string& begin, std::size_t size, bool made_folder) {
  const fs::path path = folder / "run.lock";
  lock_is_held = false;
  if (path.native().size() >= PATH_MAX || begin.size() > sizeof held_lock.begin) return;  // the lock stays, as after a SIGKILL
  std::strcpy(held_lock.path, path.c_str());
  std::strcpy(held_lock.folder, folder.c_str());
  begin.copy(held_lock.begin, begin.size());
  held_lock.begin_size = begin.size();
  held_lock.size = size;
  held_lock.made_folder = made_folder;
  lock_is_held = true;
}

// Opens the file if this process still holds the lock. Otherwise returns -1. For signal handlers.
int open_own_lock() {
  if (!lock_is_held) return -1;
  char text[sizeof held_lock.begin];
  const int fd = ::open(held_lock.path, O_RDWR | O_CLOEXEC);
  const ssize_t n = fd < 0 ? -1 : ::read(fd, text, held_lock.begin_size);
  const bool is_ours =
      n == static_cast<ssize_t>(held_lock.begin_size) && std::memcmp(text, held_lock.begin, held_lock.begin_size) == 0;
  if (fd >= 0 && !is_ours) ::close(fd);
  return is_ours ? fd : -1;
}

}  // namespace

void abandon_run_lock() noexcept {
  if (open_own_lock() < 0) return;
  ::unlink(held_lock.path);
  if (held_lock.made_folder) ::rmdir(held_lock.folder);  // fails unless the folder is empty
}

void end_run_lock(int code) noexcept {
  code_of_process = code;  // the heartbeat may be about to write the lock
  const int fd = open_own_lock();
  char digits[kCodeDigits];
  for (std::size_t i = kCodeDigits; i-- > 0; code /= 10)
    digits[i] = code > 0 || i + 1 == kCodeDigits ? static_cast<char>('0' + code % 10) : ' ';
  if (fd >= 0) [[maybe_unused]]
    const ssize_t n = ::pwrite(fd, digits, kCodeDigits, static_cast<off_t>(held_lock.size - kCodeFromEnd));
}

std::optional<LockHolder> lock_holder(const fs::path& folder) {
  const std::string text = text_of(folder / "run.lock", 0);
  return text.empty() ? std::nullopt : holder_of(text);
}

RunLock::RunLock(const fs::path& folder, RunLockTimes times, LockAttempt attempt)
    : folder_(folder), path_(folder / "run.lock"), times_(times), attempt_(std::move(attempt)) {
  const ProcessIdentity me = ProcessIdentity::mine();
  std::random_device random;
  char run[17];
  std::snprintf(run, sizeof run, "%08" PRIx32 "%08" PRIx32, static_cast<std::uint32_t>(random()),
                static_cast<std::uint32_t>(random()));
  const Json json = {{"host", me.host},       {"pid", me.pid},
                     {"since", utc_now()},    {"run", run},
                     {"boot", me.boot},       {"pid_namespace", me.pid_namespace},
                     {"machine", me.machine}, {"start_ticks", me.start_ticks},
                     {"job", attempt_.job},   {"attempt", attempt_.number}};
  begin_ = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  begin_.pop_back();
  create_output([&] {
    made_folder_ = !retry(times_.retry_s, [&] { return path_exists(folder_); });
    retry(times_.retry_s, [&] { make_folders(folder_); });
    acquire();
    device_ = device_of(folder_);
  });
  remove_interrupted_takeovers(path_);
  tell_handlers(folder_, begin_, text().size(), made_folder_);
  renewed_ = Clock::now();
  const SignalsHeld held;
  thread_ = start_thread("the heartbeat of run.lock", [this] { keep_beating(); });
}

RunLock::~RunLock() {
  lock_is_held = false;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  try {
    const FolderGuard guard(folder_);
    if (text_of(path_, times_.retry_s).starts_with(begin_)) ::unlink(path_.c_str());
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; the lock stays"));
  }
  ::close(fd_);
  if (made_folder_) ::rmdir(folder_.c_str());
}

std::string RunLock::text() const {
  char rest[64];
  std::snprintf(rest, sizeof rest, kRest, counter_, code_of_process.load());
  return begin_ + rest;
}

void RunLock::write(int fd) {
  ++counter_;
  const std::string now = text();
  const ssize_t n = ::pwrite(fd, now.data(), now.size(), 0);
  if (n != static_cast<ssize_t>(now.size())) {
    if (n >= 0) errno = ENOSPC;
    fail_errno(ExitCode::internal, path_, "cannot write");
  }
  if (::fsync(fd) != 0) fail_errno(ExitCode::internal, path_, "cannot flush to disk");
}

// Makes a lock where there is none. Returns false if another was faster.
bool RunLock::create() {
  const FolderGuard guard(folder_);
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno == EEXIST) return false;
  if (fd < 0) fail_errno(ExitCode::internal, path_, "cannot create");
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  try {
    write(fd_);
  } catch (...) {
    ::unlink(path_.c_str());
    throw;
  }
  return true;
}

// Replaces another holder's lock if it still reads `seen`. Returns false if it does not.
bool RunLock::replace(const std::string& seen, bool settles) {
  const fs::path temporary = concat(path_.string(), ".", ProcessIdentity::mine().pid, ".", std::random_device()());
  {
    const FolderGuard guard(folder_);
    if (text_of(path_, times_.retry_s) != seen) return false;
    const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) fail_errno(ExitCode::internal, temporary, "cannot create");
    fd_ = fd;
    try {
      write(fd_);
      if (::rename(temporary.c_str(), path_.c_str()) != 0) fail_errno(ExitCode::internal, path_, "cannot rename");
    } catch (...) {
      ::unlink(temporary.c_str());
      ::close(std::exchange(fd_, -1));
      throw;
    }
  }
  if (settles) {
    sleep_s(times_.settle_s);
    if (!text_of(path_, times_.retry_s).starts_with(begin_)) {
      ::close(std::exchange(fd_, -1));
      return false;
    }
  }
  return true;
}

// Returns when the lock has not changed for silence_s or is gone. Throws Error{config} if its counter grows.
void RunLock::watch(const std::string& seen) const {
  const std::optional<LockHolder> holder = holder_of(seen);
  log_info(concat(path_.string(), ": ", describe(holder), ", holds this folder. Waiting up to ", times_.silence_s,
                  " s to see whether it still runs"));
  auto start = Clock::now();
  while (seconds_since(start) < times_.silence_s) {
    sleep_s(std::min(kLookS, times_.silence_s));
    const auto look = Clock::now();
    const std::string now = text_of(path_, times_.retry_s);
    // The storage was not available, perhaps for the holder as well, which then gets the full time again to raise its counter.
    if (seconds_since(look) > times_.beat_s) start = Clock::now();
    const std::optional<LockHolder> other = holder_of(now);
    if (now == seen) continue;
    if (!holder || !other || other->run != holder->run) return;  // another holder, to be judged anew
    fail(ExitCode::config, folder_.string(), ": another run writes here: ", describe(holder),
         ", and its counter in run.lock grows. Wait for it to end, or give another run.output_dir");
  }
}

void RunLock::acquire() {
  for (;;) {
    if (retry(times_.retry_s, [&] { return create(); })) return;
    const std::string seen = text_of(path_, times_.retry_s);
    if (seen.empty()) {
      std::error_code unknown;
      demand(!fs::is_symlink(path_, unknown), ExitCode::config, path_.string(), ": a link that leads nowhere; remove it");
      continue;  // gone in this moment
    }
    const std::optional<LockHolder> holder = holder_of(seen);
    if (holder && attempt_.follows(holder->attempt)) {
      if (!replace(seen, false)) continue;
      log_info(concat(folder_.string(), ": attempt ", attempt_.number, " takes over from attempt ", holder->attempt.number, " (",
                      describe(holder), ")"));
      return;
    }
    const Fate fate = holder ? fate_of(holder->process) : Fate::unknown;
    demand(fate != Fate::runs, ExitCode::config, folder_.string(), ": another run writes here: ", describe(holder),
           ". Wait for it to end, or give another run.output_dir");
    if (fate == Fate::unknown) {
      watch(seen);
      if (text_of(path_, times_.retry_s) != seen) continue;
    }
    if (!replace(seen, fate == Fate::unknown)) continue;
    log_info(
        concat(folder_.string(), ": taken over from ", describe(holder),
               fate == Fate::ended ? ", which has ended" : concat(", whose counter stood still for ", times_.silence_s, " s")));
    return;
  }
}

bool RunLock::is_moved() const {
  const std::optional<dev_t> now = device_of(folder_);
  return now && device_ && *now != *device_;
}

void RunLock::beat() {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  moved_ = is_moved();
  if (moved_) return;  // a lock beneath a mount point would be in the way later
  try {
    const FileReader file(path_);
    std::string now(std::min(file.size(), kLongestText), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(now)));
    if (!now.starts_with(begin_)) {
      lost_to_ = describe(holder_of(now));
      lost_ = true;
      return;
    }
    write(fd_);
    renewed_ = Clock::now();
    trouble_.clear();
  } catch (const SystemError& error) {
    trouble_ = error.what();
    if (!error.not_there()) return;
    // Somebody has removed the file. The process that creates it now holds the folder.
    try {
      if (create()) renewed_ = Clock::now();
    } catch (const Error& again) {
      trouble_ = again.what();
    }
  } catch (const Error& error) {
    trouble_ = error.what();
  }
}

void RunLock::keep_beating() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(times_.beat_s), [this] { return stop_; })) {
    lock.unlock();
    beat();
    lock.lock();
  }
}

void RunLock::check() const {
  if (!lost_) return;
  const std::lock_guard lock(mutex_);
  fail(ExitCode::config, folder_.string(), ": another run has taken this folder over: ", lost_to_,
       ". This run writes nothing more");
}

void RunLock::renew() {
  beat();
  check();
  const std::lock_guard lock(mutex_);
  demand(!moved_, ExitCode::internal, folder_.string(),
         ": is on another file system than when this run began. Is one not mounted any more? Mount it again");
  const double since_s = seconds_since(renewed_);
  demand(since_s < times_.renewed_s, ExitCode::internal, path_.string(), ": could not be renewed for ", static_cast<int>(since_s),
         " s, so another run may have taken the folder over: ", trouble_);
}

}  // namespace octet::checkpoint
