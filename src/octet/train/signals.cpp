#include "octet/train/signals.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <exception>
#include <string_view>

#include "octet/base/bottom_line.h"
#include "octet/base/require.h"
#include "octet/checkpoint/run_lock.h"

namespace octet::train {
namespace {

// A signal may be handled by any thread of the process.
std::atomic<int> stop_signal = 0, interrupted = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a handler may not wait for a lock");

std::atomic<bool> says_why = false, trained = false;

// Writes only if poll() permits it: a terminal that the user holds (Ctrl-S) would keep the process from ending.
void say(std::string_view name, std::string_view rest) {
  pollfd writable = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (!says_why || ::poll(&writable, 1, 0) <= 0) return;
  for (const std::string_view text : {name, rest})
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Lets SIGALRM end the process in two seconds, because storage that does not answer would hold a handler that uses it.
void limit_end() {
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(2);
}

void on_signal(int signal) {
  if (signal == SIGINT && interrupted) {
    limit_end();
    checkpoint::end_run_lock(static_cast<int>(ExitCode::interrupted));
    abandon_bottom_line();
    say("SIGINT", " again: ended at once; the steps after the newest checkpoint are lost\n");
    _exit(static_cast<int>(ExitCode::interrupted));
  }
  if (signal == SIGINT) interrupted = 1;
  stop_signal = signal;
}

const char* name_of(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    default:
      return nullptr;
  }
}

void end_at_once(int signal) {
  limit_end();
  checkpoint::abandon_run_lock();
  abandon_bottom_line();
  say(name_of(signal), trained ? ": training is finished and saved; the rest of the command, such as its report, is not done\n"
                               : ": training has not begun, so there is nothing to save\n");
  _exit(static_cast<int>(ExitCode::preempted));
}

}  // namespace

StopHandlers::StopHandlers(void (*handler)(int)) {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], nullptr, &before_[i]);
  install(handler);
}

StopHandlers::~StopHandlers() {
  if (std::uncaught_exceptions() > 0) {
    install(on_signal);
  } else {
    for (std::size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &before_[i], nullptr);
  }
}

void StopHandlers::install(void (*handler)(int)) const {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    const bool is_ignored = kStopSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN;
    if (!is_ignored) sigaction(kStopSignals[i], &action, nullptr);
  }
}

StopOutsideTraining::StopOutsideTraining(int rank) : handlers_((says_why = rank == 0, trained = false, end_at_once)) {}

void StopOutsideTraining::training_ended() const {
  trained = true;
  handlers_.install(end_at_once);
}

StopSignals::StopSignals() : handlers_((stop_signal = 0, interrupted = 0, on_signal)) {}

const char* StopSignals::requested() { return name_of(stop_signal); }

}  // namespace octet::train
