#include "octet/train/signals.h"

#include <unistd.h>

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

void on_signal(int signal) {
  if (signal == SIGINT && interrupted) {
    abandon_bottom_line();
    _exit(static_cast<int>(ExitCode::interrupted));
  }
  if (signal == SIGINT) interrupted = 1;
  stop_signal = signal;
}

std::atomic<bool> says_why = false;

void on_early_signal(int signal) {
  checkpoint::abandon_run_lock();
  abandon_bottom_line();
  if (says_why) {
    const std::string_view name = signal == SIGTERM ? "SIGTERM" : signal == SIGHUP ? "SIGHUP" : "SIGINT";
    const std::string_view rest = ": training has not begun, so there is nothing to save\n";
    for (const std::string_view text : {name, rest}) [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  }
  _exit(static_cast<int>(ExitCode::preempted));
}

void install(void (*handler)(int), bool hang_up) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  if (hang_up) sigaction(SIGHUP, &action, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

StopBeforeTraining::StopBeforeTraining(int rank) : hang_up_(!is_ignored(SIGHUP)) {
  says_why = rank == 0;
  install(on_early_signal, hang_up_);
}

// During an exception the process is about to end with a message and an exit code of its own.
StopBeforeTraining::~StopBeforeTraining() { install(std::uncaught_exceptions() == 0 ? SIG_DFL : on_signal, hang_up_); }

StopSignals::StopSignals() : hang_up_(!is_ignored(SIGHUP)) {
  stop_signal = 0;
  interrupted = 0;
  install(on_signal, hang_up_);
}

// During an exception the process is about to end with a message and an exit code of its own. The handlers stay, so that a
// launcher that has seen another rank fail cannot kill the process with SIGTERM before that.
StopSignals::~StopSignals() {
  if (std::uncaught_exceptions() == 0) install(SIG_DFL, hang_up_);
}

const char* StopSignals::requested() {
  switch (stop_signal) {
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    default: return nullptr;
  }
}

}  // namespace octet::train
