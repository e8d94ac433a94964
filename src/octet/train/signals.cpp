#include "octet/train/signals.h"

#include <unistd.h>

#include <csignal>
#include <exception>

#include "octet/base/bottom_line.h"
#include "octet/base/require.h"

namespace octet::train {
namespace {

volatile std::sig_atomic_t stop_signal = 0, interrupted = 0;

void on_signal(int signal) {
  if (signal == SIGINT && interrupted) {
    abandon_bottom_line();
    _exit(static_cast<int>(ExitCode::interrupted));
  }
  if (signal == SIGINT) interrupted = 1;
  stop_signal = signal;
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  stop_signal = 0;
  interrupted = 0;
  install(on_signal);
}

// During an exception the process is about to end with words and a code of its own, which the SIGTERM of a launcher that has seen
// another rank fail must not take away.
StopSignals::~StopSignals() {
  if (std::uncaught_exceptions() == 0) install(SIG_DFL);
}

const char* StopSignals::requested() {
  return stop_signal == SIGTERM ? "SIGTERM" : stop_signal == SIGINT ? "SIGINT" : nullptr;
}

}  // namespace octet::train
