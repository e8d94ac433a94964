#include "octet/base/bus_error.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "octet/base/require.h"
#include "octet/base/visible.h"

namespace octet {
namespace {

// The handler may interrupt anything, so it takes no lock and reads only atomics. A message lives as long as its file is
// mapped, and therefore as long as a thread reads from the mapping.
struct WatchedRange {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<const char*> message{nullptr};
};
std::array<WatchedRange, 1000> watched_ranges;

struct sigaction handler_before;
std::atomic<std::atomic<bool>*> told{nullptr};

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const WatchedRange& range : watched_ranges) {
    const std::uintptr_t begin = range.begin.load();
    if (begin == 0 || address < begin || address >= range.end.load()) continue;
    if (std::atomic<bool>* const flag = told.load()) flag->store(true);
    const char* const message = range.message.load();
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message, std::strlen(message));
    ::_exit(static_cast<int>(ExitCode::data));
  }
  // Not our range. The previous handler gets the signal when the instruction runs again or the signal is raised again.
  ::sigaction(signal, &handler_before, nullptr);
  if (info->si_code <= 0) ::raise(signal);
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &handler_before);
  });
}

std::mutex changes;

}  // namespace

void tell_bus_errors(std::atomic<bool>& flag) { told.store(&flag); }

void watch_mapping(const void* data, std::size_t size, const std::filesystem::path& path) {
  install_handler();
  const std::lock_guard lock(changes);
  for (WatchedRange& range : watched_ranges) {
    if (range.begin.load() != 0) continue;
    const std::string text =
        concat("octet: ", printable(path.string()),
               ": cannot be read: it has become shorter since it was opened, or its disk fails. Restore the file and run "
               "the same command again\n");
    auto message = std::make_unique<char[]>(text.size() + 1);
    std::memcpy(message.get(), text.c_str(), text.size() + 1);
    range.message.store(message.release());
    range.end.store(reinterpret_cast<std::uintptr_t>(data) + size);
    range.begin.store(reinterpret_cast<std::uintptr_t>(data));
    return;
  }
}

void forget_mapping(const void* data) {
  const std::lock_guard lock(changes);
  for (WatchedRange& range : watched_ranges) {
    if (range.begin.load() != reinterpret_cast<std::uintptr_t>(data)) continue;
    range.begin.store(0);
    const std::unique_ptr<const char[]> message(range.message.exchange(nullptr));
    return;
  }
}

}  // namespace octet
