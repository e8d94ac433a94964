#include "octet/app/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "octet/base/descriptor.h"
#include "octet/base/signals_held.h"
#include "octet/base/system_call.h"
#include "octet/train/signals.h"

namespace octet::app {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr int kPreempted = static_cast<int>(ExitCode::preempted), kPeer = static_cast<int>(ExitCode::peer);

// "NAME" of "NAME=value".
std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

// Returns the ends of a pipe. Their numbers are above stdin, stdout and stderr, even if this process was started without them.
std::array<Descriptor, 2> make_pipe() {
  constexpr const char* kTrouble = "cannot make a pipe for a rank's output";
  std::array<int, 2> low{};
  if (::pipe2(low.data(), O_CLOEXEC) != 0) fail_errno(ExitCode::internal, kTrouble);
  std::array<Descriptor, 2> ends;
  for (std::size_t i = 0; i < 2; ++i) {
    const Descriptor closed(low[i]);
    ends[i] = Descriptor(::fcntl(low[i], F_DUPFD_CLOEXEC, 3));
  }
  if (!ends[0].open() || !ends[1].open()) fail_errno(ExitCode::internal, kTrouble);
  // The reading end only: a rank that writes more than fits must wait.
  ::fcntl(ends[0].get(), F_SETFL, O_NONBLOCK);
  return ends;
}

std::string describe_end(std::size_t rank, int status, int code) {
  if (!WIFSIGNALED(status)) return concat("rank ", rank, " ended with code ", code);
  const char* name = ::sigabbrev_np(WTERMSIG(status));
  return concat("rank ", rank, " was killed by signal ", WTERMSIG(status), name ? concat(" (SIG", name, ")") : "");
}

}  // namespace

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::vector<std::string>& own) {
  std::vector<std::string> all = own;
  for (char** inherited = environ; *inherited; ++inherited) {
    const auto same = [&](const std::string& variable) { return name_of(variable) == name_of(*inherited); };
    if (std::none_of(own.begin(), own.end(), same)) all.emplace_back(*inherited);
  }
  return all;
}

ProcessGroup::ProcessGroup(ProcessGroupOptions options, SignalPipe* signals)
    : options_(std::move(options)),
      signals_(signals ? *signals : own_signals_.emplace()),
      ranks_(options_.environment.size()),
      buffer_(LineSplitter::kLongest) {}

ProcessGroup::~ProcessGroup() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_) {
    for (const Pipe& pipe : rank.pipes) {
      if (pipe.fd >= 0) ::close(pipe.fd);
    }
  }
  const Clock::time_point start = Clock::now();
  for (const Rank& rank : ranks_) {
    while (rank.pid > 0 && ::waitpid(rank.pid, nullptr, WNOHANG) == 0 && seconds_since(start) < options_.killed_s)
      ::poll(nullptr, 0, 1);
  }
}

int ProcessGroup::run() {
  start();
  while (running()) turn(-1, kForever);
  return conclude();
}

void ProcessGroup::start() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) start(rank);
}

int ProcessGroup::conclude() {
  if (misses_peer_ && !noted_) note(*misses_peer_);
  if (code_ == kPreempted && !noted_) options_.note("the run was asked to stop (code 75)");
  return code_;
}

// Between fork and exec, only calls that are safe in a signal handler are allowed, because another thread may have held a lock
// of malloc.
void ProcessGroup::start(std::size_t rank) {
  std::vector<std::string> environment = environment_with(options_.environment[rank]);
  const std::vector<char*> argv = pointers(options_.arguments), envp = pointers(environment);
  const std::string complaint = concat("cannot run ", options_.program, "\n");
  std::array<Descriptor, 2> out = make_pipe(), err = make_pipe();

  const pid_t parent = ::getpid();
  const SignalsHeld held;  // between fork and exec a child has its parent's handlers
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it died before the call above
    if (options_.first_rank + static_cast<int>(rank) > 0) {
      const int null = ::open("/dev/null", O_RDONLY);
      if (null > 0) ::dup2(null, STDIN_FILENO);
      if (null > 2) ::close(null);
    }
    ::dup2(out[1].get(), STDOUT_FILENO);
    ::dup2(err[1].get(), STDERR_FILENO);
    signals_.restore_handlers();
    ::signal(SIGCHLD, SIG_DFL);
    held.release();
    ::execve(options_.program.c_str(), argv.data(), envp.data());
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, complaint.data(), complaint.size());
    ::_exit(127);
  }
  const int error = errno;
  demand(pid > 0, ExitCode::internal, "cannot start rank ", options_.first_rank + static_cast<int>(rank), ": ",
         std::strerror(error));
  ::setpgid(pid, pid);  // here, too: a signal may have to be passed on before the child gets that far
  ranks_[rank].pid = pid;
  ranks_[rank].pipes[0].fd = out[0].release();
  ranks_[rank].pipes[1].fd = err[0].release();
}

void ProcessGroup::turn(int also, double at_most_s) {
  std::vector<pollfd> polled = {{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                {.fd = also, .events = POLLIN, .revents = 0}};
  for (const Rank& rank : ranks_) {
    for (const Pipe& pipe : rank.pipes) polled.push_back({.fd = pipe.fd, .events = POLLIN, .revents = 0});  // -1 is skipped
  }
  double wait_s = at_most_s;
  if (kill_at_) wait_s = std::min(wait_s, -seconds_since(*kill_at_));
  const int timeout_ms = wait_s == kForever ? -1 : static_cast<int>(std::clamp(std::ceil(wait_s * 1e3), 0.0, 1e9));
  const int ready = ::poll(polled.data(), polled.size(), timeout_ms);
  if (ready < 0 && errno != EINTR) fail_errno(ExitCode::internal, "cannot wait for the ranks");

  bool ended = false;
  for (const int signal : signals_.take()) {
    if (signal == SIGCHLD) {
      ended = true;
    } else {
      // A rank may also have got this SIGINT itself, and a second one would end it without saving.
      signal_all(signal == SIGINT && options_.trains ? SIGTERM : signal);
      asked_to_end_ = asked_to_end_ || train::asks_to_stop(signal);
    }
  }
  if (ready > 0) {
    for (std::size_t i = 2; i < polled.size(); ++i) {
      if (polled[i].revents != 0) read((i - 2) / 2, static_cast<StandardStream>(i % 2));
    }
  }
  if (ended) reap();
  if (kill_at_ && Clock::now() >= *kill_at_) {
    signal_all(SIGKILL);
    killed_ = true;
    kill_at_.reset();
  }
}

bool ProcessGroup::read(std::size_t rank, StandardStream stream) {
  Pipe& pipe = ranks_[rank].pipes[static_cast<std::size_t>(stream)];
  if (pipe.fd < 0) return false;
  const ssize_t n = ::read(pipe.fd, buffer_.data(), buffer_.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  if (n <= 0) {
    close(rank, stream);
    return false;
  }
  pipe.lines.feed({buffer_.data(), static_cast<std::size_t>(n)},
                  [&](std::string_view line) { options_.output(options_.first_rank + static_cast<int>(rank), stream, line); });
  return true;
}

void ProcessGroup::close(std::size_t rank, StandardStream stream) {
  Pipe& pipe = ranks_[rank].pipes[static_cast<std::size_t>(stream)];
  if (pipe.fd < 0) return;
  ::close(pipe.fd);
  pipe.fd = -1;
  pipe.lines.finish([&](std::string_view line) { options_.output(options_.first_rank + static_cast<int>(rank), stream, line); });
}

void ProcessGroup::reap() {
  std::vector<End> ends;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    siginfo_t info{};
    if (rank.pid < 0 || ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) continue;
    if (info.si_pid != rank.pid) continue;
    ::kill(-rank.pid, SIGKILL);  // ends the processes that it left behind, before another process group can get its number
    int status = 0;
    ::waitpid(rank.pid, &status, 0);
    rank.pid = -1;
    // Print the rank's last output before the sentence about its end.
    for (const StandardStream stream : {StandardStream::out, StandardStream::err}) {
      while (read(i, stream)) {
      }
      close(i, stream);
    }
    ends.push_back({.rank = i, .status = status, .code = code_of(status)});
  }
  for (const End& end : ends) judge(end);
}

int ProcessGroup::code_of(int status) const {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  // The rank had not installed its handlers yet, so there was nothing to save.
  if (options_.trains && asked_to_end_ && train::asks_to_stop(signal)) return kPreempted;
  return 128 + signal;
}

void ProcessGroup::judge(const End& end) {
  if (end.code == 0) return;
  bool settles = code_ == 0;  // what run() returns
  if (settles) {
    code_ = end.code;
    failed_at_ = Clock::now();
    kill_after(options_.grace_s);
  }
  if (code_ == kPeer) {
    // The missed peer may still be ending, with the cause that is to be reported. A SIGTERM must not hide that cause.
    if (settles) misses_peer_ = end;
    if (end.code == kPeer || end.code == kPreempted || (killed_ && end.code == 128 + SIGKILL)) return;
    if (ending_ && end.code == 128 + SIGTERM) return;
    code_ = end.code;
    settles = true;
  }
  // A rank that was asked to end, has saved and is about to end may no longer catch a second SIGTERM.
  if (settles && (end.code != kPreempted || !asked_to_end_)) signal_all(SIGTERM);
  // Being pre-empted is no failure, and the rest may end by the SIGTERM above.
  if (noted_ || end.code == kPreempted || (!settles && end.code == 128 + SIGTERM)) return;
  note(end);
}

void ProcessGroup::note(const End& end) {
  noted_ = true;
  noted_rank_ = options_.first_rank + static_cast<int>(end.rank);
  if (end.code == static_cast<int>(ExitCode::config)) return;  // the rank's own sentence says what to change
  options_.note(concat(describe_end(static_cast<std::size_t>(noted_rank_), end.status, end.code),
                       code_ == kPreempted ? " after others were asked to stop (code 75)" : ""));
}

void ProcessGroup::signal_all(int signal) const {
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) ::kill(-rank.pid, signal);
  }
}

void ProcessGroup::kill_after(double grace_s) {
  kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_s));
}

void ProcessGroup::end(double grace_s) {
  if (!running()) return;
  ending_ = true;
  if (code_ == 0) {
    code_ = kPeer;
    failed_at_ = Clock::now();
  }
  kill_after(grace_s);
  signal_all(SIGTERM);
}

bool ProcessGroup::running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.pid > 0; });
}

}  // namespace octet::app
