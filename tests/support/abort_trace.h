// Where a test program is when it aborts: the C library's heap check says nothing of that. Include it once in the program.
#pragma once

#include <csignal>
#include <execinfo.h>
#include <unistd.h>

namespace octet::testing {

struct AbortTrace {
  AbortTrace() {
    void* frame;
    backtrace(&frame, 1);  // loads what it needs, which a broken heap could not
    std::signal(SIGABRT, [](int) {
      void* frames[64];
      backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    });
  }
};
inline const AbortTrace abort_trace;

}  // namespace octet::testing
