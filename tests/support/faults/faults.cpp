// A library that makes system calls fail. Load it before all others: LD_PRELOAD=liboctet_faults.so octet train run.toml.
//
// OCTET_FAULTS holds rules, separated by semicolons. OCTET_FAULTS=@FILE reads a file with one rule on each line. A rule is:
//
//     CALLS PATTERN WHEN FAILURE [while PATH]
//
// CALLS: names of calls, separated by commas. They are open, opendir, readdir, read, write, fsync, close, rename, link, unlink,
//     mkdir, rmdir, stat, truncate and pipe. A name stands for its whole family: `open` also for openat, creat and fopen, `read`
//     for pread, `write` for pwrite, `fsync` for fdatasync, `rename` for renameat and renameat2, `stat` for lstat, fstat and
//     access.
// PATTERN: a glob as for fnmatch. It must match the whole absolute path; * also matches slashes. A call on a descriptor has the
//     path that the descriptor was opened with. A rename has its destination's path. The path of `pipe` is "pipe".
// WHEN: which of this process's matching calls fail, counted from 1. `3`: the third, `3-5`: the third to the fifth, `3+`: the
//     third and all later ones.
// FAILURE: the name of an errno (EIO, ENOSPC, EACCES, ...), `short`, `kill` or `hang`. `short` lets a read or write do half of
// its
//     work. `kill` sends the process SIGKILL instead of making the call. With `hang` the call never returns.
// while PATH: calls match and are counted only while the file PATH exists. A test can so switch a fault on and off in a running
//     process.
//
// A call that fails does nothing. Only `close` still closes the descriptor before it reports the failure, as on Linux.
// Each fault adds a line such as "fsync /path EIO" to the file OCTET_FAULTS_LOG. Tests read it to know that their fault happened.
//
// A wrong rule ends the process with code 99. The library sees the calls of libstdc++, but not those that the C library makes
// internally.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kShort = -1, kKill = -2, kHang = -3;
constexpr int kMostRules = 64;
constexpr std::size_t kLongestPath = 2 * PATH_MAX;
constexpr long kForever = LONG_MAX;

struct Rule {
  char calls[128], pattern[PATH_MAX], condition[PATH_MAX], failure[16];
  long first = 0, last = 0;
  int error = 0;
  std::atomic<long> matches{0};
};

struct Name {
  const char* name;
  int error;
};
constexpr Name kErrors[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC},       {"EACCES", EACCES}, {"ENOENT", ENOENT}, {"EINTR", EINTR},
    {"ESTALE", ESTALE}, {"EROFS", EROFS},         {"EDQUOT", EDQUOT}, {"EMFILE", EMFILE}, {"ENFILE", ENFILE},
    {"EAGAIN", EAGAIN}, {"EINVAL", EINVAL},       {"EPERM", EPERM},   {"EBUSY", EBUSY},   {"ENOTSUP", ENOTSUP},
    {"ENOMEM", ENOMEM}, {"ETIMEDOUT", ETIMEDOUT}, {"EXDEV", EXDEV},   {"short", kShort},  {"kill", kKill},
    {"hang", kHang}};

// The calls that a rule may name.
constexpr const char* kCalls[] = {"open", "opendir", "readdir", "read",  "write", "fsync",    "close", "rename",
                                  "link", "unlink",  "mkdir",   "rmdir", "stat",  "truncate", "pipe"};

[[noreturn]] void refuse(const char* rule) {
  std::fprintf(stderr, "faults.cpp: cannot read the rule \"%s\"\n", rule);
  ::_exit(99);
}

bool contains(const char* comma_list, const char* name) {
  const std::size_t length = std::strlen(name);
  for (const char* at = comma_list; (at = std::strstr(at, name)) != nullptr; at += length) {
    const bool begins = at == comma_list || at[-1] == ',', ends = at[length] == ',' || at[length] == '\0';
    if (begins && ends) return true;
  }
  return false;
}

class Rules {
 public:
  // Runs at the first call that the program makes, which may be before main.
  Rules() {
    const char* text = std::getenv("OCTET_FAULTS");
    if (!text) return;
    static char buffer[1 << 16];
    if (text[0] == '@') {
      const long file = ::syscall(SYS_openat, AT_FDCWD, text + 1, O_RDONLY | O_CLOEXEC);
      const long size = file < 0 ? -1 : ::syscall(SYS_read, file, buffer, sizeof buffer - 1);
      if (size < 0) refuse(text);
      ::syscall(SYS_close, file);
    } else {
      std::snprintf(buffer, sizeof buffer, "%s", text);
    }
    char* rest = nullptr;
    for (char* rule = ::strtok_r(buffer, ";\n", &rest); rule; rule = ::strtok_r(nullptr, ";\n", &rest)) add(rule);
  }

  // Returns how this call fails, or 0 if it does not.
  int failure_of(const char* call, const char* path) {
    for (int i = 0; i < count_; ++i) {
      Rule& rule = rules_[i];
      if (!contains(rule.calls, call) || ::fnmatch(rule.pattern, path, 0) != 0) continue;
      if (rule.condition[0] != '\0' && ::syscall(SYS_faccessat, AT_FDCWD, rule.condition, F_OK) != 0) continue;
      const long number = ++rule.matches;
      if (number < rule.first || number > rule.last) continue;
      tell(call, path, rule.failure);
      if (rule.error == kKill) ::kill(::getpid(), SIGKILL);
      while (rule.error == kHang) ::pause();
      return rule.error;
    }
    return 0;
  }
  bool empty() const { return count_ == 0; }

 private:
  void add(const char* text) {
    char when[32] = "", word[16] = "";
    Rule& rule = rules_[count_];
    rule.condition[0] = '\0';
    const int words = std::sscanf(text, " %127s %4095s %31s %15s %15s %4095s", rule.calls, rule.pattern, when, rule.failure, word,
                                  rule.condition);
    if (words == EOF) return;
    if (count_ == kMostRules - 1 || (words != 4 && !(words == 6 && std::strcmp(word, "while") == 0))) refuse(text);
    char calls[sizeof rule.calls];
    std::strcpy(calls, rule.calls);
    char* rest = nullptr;
    for (const char* call = ::strtok_r(calls, ",", &rest); call; call = ::strtok_r(nullptr, ",", &rest)) {
      bool known = false;
      for (const char* one : kCalls) known = known || std::strcmp(one, call) == 0;
      if (!known) refuse(text);
    }
    char* end = nullptr;
    rule.first = std::strtol(when, &end, 10);
    rule.last = *end == '+' ? kForever : *end == '-' ? std::strtol(end + 1, nullptr, 10) : rule.first;
    for (const Name& name : kErrors) {
      if (std::strcmp(name.name, rule.failure) == 0) rule.error = name.error;
    }
    if (rule.first < 1 || rule.last < rule.first || rule.error == 0) refuse(text);
    ++count_;
  }

  static void tell(const char* call, const char* path, const char* failure) {
    const char* log = std::getenv("OCTET_FAULTS_LOG");
    if (!log) return;
    char line[kLongestPath + 64];
    const int size = std::snprintf(line, sizeof line, "%s %s %s\n", call, path, failure);
    const long file = ::syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return;
    ::syscall(SYS_write, file, line, size);
    ::syscall(SYS_close, file);
  }

  Rule rules_[kMostRules];
  int count_ = 0;
};

Rules& rules() {
  static Rules all;
  return all;
}

// Reads the rules at the start, so that wrong rules are refused even if no call is made.
[[gnu::constructor]] void read_rules() { rules(); }

// If the call is to fail, sets errno and returns true. If it is to do half of its work, sets `half` instead.
bool fails(const char* call, const char* path, bool* half = nullptr) {
  const int before = errno;
  const int failure = rules().empty() ? 0 : rules().failure_of(call, path);
  errno = before;
  if (failure == kShort && half) *half = true;
  if (failure <= 0) return false;
  errno = failure;
  return true;
}

// Returns the path of `name` relative to the folder's descriptor.
const char* path_of(int folder, const char* name, char* buffer) {
  if (!name || name[0] == '/') return name ? name : "";
  char base[PATH_MAX] = "";
  if (folder == AT_FDCWD) {
    if (::syscall(SYS_getcwd, base, sizeof base) < 0) return name;
  } else {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const long size = ::syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
    if (size < 0) return name;
    base[size] = '\0';
  }
  std::snprintf(buffer, kLongestPath, "%s%s%s", base, name[0] ? "/" : "", name);
  return buffer;
}

bool fails_at(const char* call, int folder, const char* name) {
  if (rules().empty()) return false;
  const int before = errno;
  char buffer[kLongestPath];
  const char* const path = path_of(folder, name, buffer);
  errno = before;
  return fails(call, path);
}

bool fails_on(const char* call, int fd, bool* half = nullptr) {
  if (rules().empty()) return false;
  const int before = errno;
  char buffer[kLongestPath];
  const char* const path = path_of(fd, "", buffer);
  errno = before;
  return fails(call, path, half);
}

template <std::size_t kSize>
struct Literal {
  char text[kSize];
  consteval Literal(const char (&literal)[kSize]) {  // NOLINT: implicit
    for (std::size_t i = 0; i < kSize; ++i) text[i] = literal[i];
  }
};

// Looked up when this library is loaded, because dlsym() takes a lock: a signal handler that writes would wait for it for ever if
// it interrupts a thread that is just taking it.
template <Literal kName>
struct Next {
  static inline void* const function = ::dlsym(RTLD_NEXT, kName.text);
};

// Returns the function that the program would call without this library.
template <Literal kName, class Function>
Function next(Function) {
  void* const known = Next<kName>::function;  // null in the constructors of other libraries, which may run earlier
  return reinterpret_cast<Function>(known ? known : ::dlsym(RTLD_NEXT, kName.text));
}

mode_t mode_of(int flags, va_list list) { return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return fails_at("open", AT_FDCWD, path) ? -1 : next<"open">(&open)(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return fails_at("open", AT_FDCWD, path) ? -1 : next<"open64">(&open64)(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return fails_at("open", folder, path) ? -1 : next<"openat">(&openat)(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return fails_at("open", folder, path) ? -1 : next<"openat64">(&openat64)(folder, path, flags, mode);
}
int creat(const char* path, mode_t mode) { return fails_at("open", AT_FDCWD, path) ? -1 : next<"creat">(&creat)(path, mode); }
FILE* fopen(const char* path, const char* mode) {
  return fails_at("open", AT_FDCWD, path) ? nullptr : next<"fopen">(&fopen)(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  return fails_at("open", AT_FDCWD, path) ? nullptr : next<"fopen64">(&fopen64)(path, mode);
}

DIR* opendir(const char* path) { return fails_at("opendir", AT_FDCWD, path) ? nullptr : next<"opendir">(&opendir)(path); }
DIR* fdopendir(int fd) { return fails_on("opendir", fd) ? nullptr : next<"fdopendir">(&fdopendir)(fd); }
dirent* readdir(DIR* folder) { return fails_on("readdir", ::dirfd(folder)) ? nullptr : next<"readdir">(&readdir)(folder); }
dirent64* readdir64(DIR* folder) {
  return fails_on("readdir", ::dirfd(folder)) ? nullptr : next<"readdir64">(&readdir64)(folder);
}

ssize_t read(int fd, void* to, size_t size) {
  bool half = false;
  return fails_on("read", fd, &half) ? -1 : next<"read">(&read)(fd, to, half ? (size + 1) / 2 : size);
}
ssize_t pread(int fd, void* to, size_t size, off_t at) {
  bool half = false;
  return fails_on("read", fd, &half) ? -1 : next<"pread">(&pread)(fd, to, half ? (size + 1) / 2 : size, at);
}
ssize_t pread64(int fd, void* to, size_t size, off64_t at) {
  bool half = false;
  return fails_on("read", fd, &half) ? -1 : next<"pread64">(&pread64)(fd, to, half ? (size + 1) / 2 : size, at);
}
ssize_t write(int fd, const void* from, size_t size) {
  bool half = false;
  return fails_on("write", fd, &half) ? -1 : next<"write">(&write)(fd, from, half ? (size + 1) / 2 : size);
}
ssize_t pwrite(int fd, const void* from, size_t size, off_t at) {
  bool half = false;
  return fails_on("write", fd, &half) ? -1 : next<"pwrite">(&pwrite)(fd, from, half ? (size + 1) / 2 : size, at);
}
ssize_t pwrite64(int fd, const void* from, size_t size, off64_t at) {
  bool half = false;
  return fails_on("write", fd, &half) ? -1 : next<"pwrite64">(&pwrite64)(fd, from, half ? (size + 1) / 2 : size, at);
}
int fsync(int fd) { return fails_on("fsync", fd) ? -1 : next<"fsync">(&fsync)(fd); }
int fdatasync(int fd) { return fails_on("fsync", fd) ? -1 : next<"fdatasync">(&fdatasync)(fd); }
int close(int fd) {
  const bool failed = fails_on("close", fd);
  const int error = errno;
  const int result = next<"close">(&close)(fd);
  if (!failed) return result;
  errno = error;
  return -1;
}
int ftruncate(int fd, off_t size) { return fails_on("truncate", fd) ? -1 : next<"ftruncate">(&ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fails_on("truncate", fd) ? -1 : next<"ftruncate64">(&ftruncate64)(fd, size); }
int truncate(const char* path, off_t size) {
  return fails_at("truncate", AT_FDCWD, path) ? -1 : next<"truncate">(&truncate)(path, size);
}

int rename(const char* from, const char* to) { return fails_at("rename", AT_FDCWD, to) ? -1 : next<"rename">(&rename)(from, to); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return fails_at("rename", to_folder, to) ? -1 : next<"renameat">(&renameat)(from_folder, from, to_folder, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return fails_at("rename", to_folder, to) ? -1 : next<"renameat2">(&renameat2)(from_folder, from, to_folder, to, flags);
}
int link(const char* from, const char* to) { return fails_at("link", AT_FDCWD, to) ? -1 : next<"link">(&link)(from, to); }
int unlink(const char* path) { return fails_at("unlink", AT_FDCWD, path) ? -1 : next<"unlink">(&unlink)(path); }
int unlinkat(int folder, const char* path, int flags) {
  return fails_at((flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink", folder, path)
             ? -1
             : next<"unlinkat">(&unlinkat)(folder, path, flags);
}
int mkdir(const char* path, mode_t mode) { return fails_at("mkdir", AT_FDCWD, path) ? -1 : next<"mkdir">(&mkdir)(path, mode); }
int rmdir(const char* path) { return fails_at("rmdir", AT_FDCWD, path) ? -1 : next<"rmdir">(&rmdir)(path); }

int stat(const char* path, struct stat* info) { return fails_at("stat", AT_FDCWD, path) ? -1 : next<"stat">(&stat)(path, info); }
int lstat(const char* path, struct stat* info) {
  return fails_at("stat", AT_FDCWD, path) ? -1 : next<"lstat">(&lstat)(path, info);
}
int fstat(int fd, struct stat* info) { return fails_on("stat", fd) ? -1 : next<"fstat">(&fstat)(fd, info); }
int access(const char* path, int mode) { return fails_at("stat", AT_FDCWD, path) ? -1 : next<"access">(&access)(path, mode); }

int pipe2(int ends[2], int flags) { return fails("pipe", "pipe") ? -1 : next<"pipe2">(&pipe2)(ends, flags); }

}  // extern "C"
