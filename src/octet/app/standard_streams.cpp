#include "octet/app/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "octet/base/system_call.h"

namespace octet::app {
namespace {

enum class Output { written, unread, refused };
Output output = Output::written;

// Not by way of log.h: whoever prints may hold what log.h takes.
void say_once(int error) {
  const std::string line = concat("warning: cannot write to stdout: ", std::strerror(error), "; octet goes on without it\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

ssize_t write_or_discard(void*, const char* data, std::size_t size) {
  for (std::size_t done = 0; done < size && output == Output::written;) {
    const ssize_t n = ::write(STDOUT_FILENO, data + done, size - done);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {  // whoever shares it made it non-blocking
      pollfd writable = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      const int error = errno;
      output = error == EPIPE || error == EIO ? Output::unread : Output::refused;  // EIO: a terminal that is gone
      say_once(error);
    }
  }
  return static_cast<ssize_t>(size);
}

}  // namespace

void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number that is free is this one. The wrong way round, so that nothing is read and nothing is lost unsaid.
    const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened != stream) fail_errno(ExitCode::internal, "/dev/null: cannot open");
  }
}

void outlive_stdout() {
  std::fflush(stdout);
  std::signal(SIGPIPE, SIG_IGN);
  std::FILE* const stream =
      ::fopencookie(nullptr, "w", {.read = nullptr, .write = write_or_discard, .seek = nullptr, .close = nullptr});
  if (!stream) return;
  std::setvbuf(stream, nullptr, ::isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
  stdout = stream;  // in glibc a variable like any other
}

bool lost_output() { return output == Output::refused; }

}  // namespace octet::app
