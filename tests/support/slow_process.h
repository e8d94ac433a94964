// Makes a process slow, as a hot GPU or a busy host would.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <thread>

namespace octet::testing {

// While it lives, the process stands still for 57 ms, runs for 3 ms, and so on. On a busy machine it runs longer: until it has
// had a millisecond of processor time, or has had 100 ms in which to take it.
class SlowProcess {
 public:
  explicit SlowProcess(pid_t pid) : thread_([this, pid] { slow_down(pid); }) {}
  ~SlowProcess() {
    ends_ = true;
    thread_.join();
  }
  SlowProcess(const SlowProcess&) = delete;
  SlowProcess& operator=(const SlowProcess&) = delete;

 private:
  void slow_down(pid_t pid) const {
    clockid_t clock{};
    if (pid <= 1 || ::clock_getcpuclockid(pid, &clock) != 0) return;  // -1 would be all processes
    while (!ends_ && ::kill(pid, SIGSTOP) == 0) {
      const std::int64_t before_ns = nanoseconds(clock);
      std::this_thread::sleep_for(std::chrono::milliseconds(57));
      ::kill(pid, SIGCONT);
      for (int ms = 0; ms < 3 || (ms < 100 && nanoseconds(clock) - before_ns < 1'000'000); ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  static std::int64_t nanoseconds(clockid_t clock) {
    timespec used{};
    ::clock_gettime(clock, &used);
    return used.tv_sec * std::int64_t{1'000'000'000} + used.tv_nsec;
  }

  std::atomic<bool> ends_ = false;
  std::thread thread_;  // the last member, because it uses the other
};

}  // namespace octet::testing
