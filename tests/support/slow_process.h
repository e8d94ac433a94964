// Makes a process slow, as a hot GPU or a busy host would.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace octet::testing {

// While it lives, the process stands still for 57 of every 60 ms.
class SlowProcess {
 public:
  explicit SlowProcess(pid_t pid)
      : thread_([this, pid] {
          while (pid > 1 && !ends_ && ::kill(pid, SIGSTOP) == 0) {  // -1 would be all processes
            std::this_thread::sleep_for(std::chrono::milliseconds(57));
            ::kill(pid, SIGCONT);
            std::this_thread::sleep_for(std::chrono::milliseconds(3));
          }
        }) {}
  ~SlowProcess() {
    ends_ = true;
    thread_.join();
  }
  SlowProcess(const SlowProcess&) = delete;
  SlowProcess& operator=(const SlowProcess&) = delete;

 private:
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // the last member, because it uses the other
};

}  // namespace octet::testing
