#include "octet/app/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <forward_list>
#include <string>
#include <utility>

#include "octet/base/system_call.h"

namespace octet::app {
namespace {

// Not by way of log.h: whoever prints may hold what log.h takes.
void say(int error) {
  const std::string line = concat("warning: cannot write to stdout: ", std::strerror(error), "; octet continues without it\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

// The writer of a stdio stream; `text` is its OutputText.
ssize_t write_or_fail(void* text, const char* data, std::size_t size) {
  const int error = static_cast<OutputText*>(text)->write({data, size});
  errno = error;
  return error == 0 ? static_cast<ssize_t>(size) : 0;
}

ssize_t write_or_discard(void* output, const char* data, std::size_t size) {
  static bool said = false;
  const int error = static_cast<LastingOutput*>(output)->write({data, size});
  if (error != 0 && !std::exchange(said, true)) say(error);
  return static_cast<ssize_t>(size);
}

// Writes everything, waiting if somebody made the descriptor non-blocking. Returns 0 or the errno of the failure.
int write_all(int fd, std::string_view text, std::size_t* rest = nullptr) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {  // whoever shares it made it non-blocking
      pollfd writable = {.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      if (rest) *rest = text.size();
      return errno;
    }
  }
  return 0;
}

// A stdio stream that writes to `fd` by way of an Output, or null if there is no memory. Both live until the process ends: the C
// library flushes streams after it has destroyed all static objects.
template <class Output>
std::FILE* stream_of(Output& output, cookie_write_function_t* write, int buffering) {
  std::FILE* const stream = ::fopencookie(&output, "w", {.read = nullptr, .write = write, .seek = nullptr, .close = nullptr});
  if (stream) std::setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

// Sanitizers must find them, and they do not look into streams.
OutputText& kept_text(int fd) {
  static auto& texts = *new std::forward_list<OutputText>;
  return texts.emplace_front(fd);
}

}  // namespace

OutputText::OutputText(int fd) : fd_(fd), terminal_(::isatty(fd) == 1) {}

int OutputText::write(std::string_view text, std::size_t* rest) {
  return terminal_ ? write_all(fd_, visible_.feed(text), rest) : write_all(fd_, text, rest);
}

int LastingOutput::write(std::string_view text) {
  if (unread_) return error_;
  if (missing_ > 0) {
    const std::string gap = concat(within_a_line_ ? "\n" : "", "octet: ", missing_,
                                   " bytes of this output are missing here: ", std::strerror(error_), "\n");
    if (put(gap) > 0) {
      missing_ += text.size();
      return error_;
    }
    missing_ = 0;
  }
  missing_ = put(text);
  return error_;
}

std::size_t LastingOutput::put(std::string_view text) {
  std::size_t rest = 0;
  error_ = text_.write(text, &rest);
  unread_ = error_ == EPIPE || error_ == EIO;  // EIO: a terminal that is gone
  if (rest < text.size()) within_a_line_ = text[text.size() - rest - 1] != '\n';
  return rest;
}

bool obeys_sequences(int fd) {
  const char* const kind = std::getenv("TERM");
  return ::isatty(fd) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

bool wants_colours(int fd) {
  const char* const none = std::getenv("NO_COLOR");
  return obeys_sequences(fd) && (none == nullptr || *none == '\0');
}

void print_coloured(std::string_view text) {
  std::fflush(stdout);
  errno = write_all(STDOUT_FILENO, text);
  if (errno != 0) fail_errno(ExitCode::internal, "cannot write to stdout");
}

void hold_standard_streams() {
  // The signal would end the program in a write beyond `ulimit -f`. Without it the write fails, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number that is free is this one. The wrong way round, so that nothing is read and nothing is lost unsaid.
    const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened != stream) fail_errno(ExitCode::internal, "/dev/null: cannot open");
  }
  // In glibc stdout and stderr are variables like any other.
  if (::isatty(STDOUT_FILENO)) {
    if (std::FILE* const stream = stream_of(kept_text(STDOUT_FILENO), write_or_fail, _IOLBF)) stdout = stream;
  }
  if (::isatty(STDERR_FILENO)) {
    if (std::FILE* const stream = stream_of(kept_text(STDERR_FILENO), write_or_fail, _IONBF)) stderr = stream;
  }
}

void outlive_stdout() {
  std::fflush(stdout);
  std::signal(SIGPIPE, SIG_IGN);
  static LastingOutput& output = *new LastingOutput(STDOUT_FILENO);  // like kept_text()
  if (std::FILE* const stream = stream_of(output, write_or_discard, ::isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF)) stdout = stream;
}

}  // namespace octet::app
