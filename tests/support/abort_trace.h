// Prints a stack trace when the test program aborts, because the C library's heap checks do not say where they failed. Include it in one
// file of the program.
#pragma once

#include <csignal>
#include <execinfo.h>
#include <unistd.h>

namespace octet::testing {

struct AbortTrace {
  AbortTrace() {
    void* frame;
    backtrace(&frame, 1);  // the first call allocates memory, which is impossible when the heap is already broken
    std::signal(SIGABRT, [](int) {
      void* frames[64];
      backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    });
  }
};
inline const AbortTrace abort_trace;

}  // namespace octet::testing
