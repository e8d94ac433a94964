#include "octet/base/print_stack.h"

#include <execinfo.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

namespace octet {
namespace {

constexpr int kFrames = 64;

// Allocates nothing. Finding the frames may wait for a thread that is just loading a library.
void print_stack(int) {
  const int error = errno;
  std::array<char, 16> name{};  // of the thread, as long as the kernel's can be
  ::prctl(PR_GET_NAME, name.data());
  std::array<char, 64> line{};
  char* end = line.data();
  const auto append = [&](const char* text, std::size_t length) {
    std::memcpy(end, text, length);
    end += length;
  };
  append("stack of thread ", 16);
  end = std::to_chars(end, line.data() + 40, static_cast<int>(::gettid())).ptr;
  append(" (", 2);
  append(name.data(), ::strnlen(name.data(), name.size()));
  append(")\n", 2);
  if (::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(end - line.data())) >= 0) {
    std::array<void*, kFrames> frames{};
    ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), kFrames), STDERR_FILENO);
  }
  errno = error;
}

}  // namespace

void print_stack_on_signal() {
  std::array<void*, 1> frames{};
  ::backtrace(frames.data(), 1);  // the first call loads a library, which is not safe in a handler
  struct sigaction action {};
  action.sa_handler = print_stack;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGURG, &action, nullptr);
}

}  // namespace octet
