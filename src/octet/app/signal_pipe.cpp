#include "octet/app/signal_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "octet/base/bottom_line.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::app {
namespace {

volatile sig_atomic_t pipe_end = -1, interrupted = 0;

void on_signal(int signal) {
  if (signal == SIGINT && interrupted) {
    abandon_bottom_line();
    _exit(static_cast<int>(ExitCode::interrupted));
  }
  if (signal == SIGINT) interrupted = 1;
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe loses a signal, but then thousands are unread.
  [[maybe_unused]] const ssize_t written = ::write(pipe_end, &byte, 1);
  errno = error;
}

}  // namespace

SignalPipe::SignalPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail_errno(ExitCode::internal, "cannot make a pipe");
  read_ = ends[0];
  write_ = ends[1];
  pipe_end = write_;
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  sigset_t ours;
  sigemptyset(&ours);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    // Under nohup, the end of the terminal must not end the program.
    if (kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
    sigaddset(&ours, kSignals[i]);
  }
  // The parent process may have blocked them. With SIGCHLD blocked, the end of a child would never be noticed.
  ::pthread_sigmask(SIG_UNBLOCK, &ours, &mask_before_);
}

SignalPipe::~SignalPipe() {
  restore_handlers();
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  ::close(read_);
  ::close(write_);
}

std::vector<int> SignalPipe::take() const {
  std::vector<int> signals;
  unsigned char bytes[256];
  for (ssize_t n; (n = ::read(read_, bytes, sizeof bytes)) > 0;) signals.insert(signals.end(), bytes, bytes + n);
  return signals;
}

void SignalPipe::restore_handlers() const {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

}  // namespace octet::app
