// What tests of `octet launch --supervise` on one host share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>

#include "support/hosts.h"
#include "support/tiny_run.h"

namespace octet::testing {

class Supervise : public ::testing::Test {
 protected:
  std::string command(const std::string& options, int ranks = 2, const std::string& limits = "") const {
    return concat("launch -n ", ranks, " --supervise ", limits, " -- train run.toml --metrics.tensorboard=false ", options);
  }
  // Kills a rank of an attempt that has not been hit yet, as soon as it is there.
  void kill_rank(int rank) {
    for (int tries = 0; tries < 10'000; ++tries) {
      const pid_t victim = run_.pid_of_rank(rank);
      if (victim > 1 && victim != victim_) {
        victim_ = victim;
        signal_process(victim, SIGKILL);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "rank " << rank << " has not been started";
  }
  Json status() const { return json_of(run_.run("status out --json").out); }
  // Waits until the supervisor has said these words.
  bool node_says(const std::string& words) const {
    const std::filesystem::path log = run_ / "out/logs/node-000.log";
    for (int tries = 0; tries < 3000; ++tries) {
      if (std::filesystem::exists(log) && says(read_file(log), words)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Makes a folder of files that stands in for the control group of a process that starts with kInGroup. No kernel enforces its
  // limit. A process that may not mount the folder ends with 99.
  void make_group(std::int64_t limit_bytes) const {
    write_text(run_ / "in_a_group.sh", R"(
      group=$(sed -n 's,^[0-9]*:.*\bmemory\b[^:]*:,/sys/fs/cgroup/memory,p' /proc/self/cgroup)
      [ -n "$group" ] || group=$(sed -n 's,^0::,/sys/fs/cgroup,p' /proc/self/cgroup)
      mount --bind group "$group" || exit 99
      exec "$@"
    )");
    std::filesystem::create_directories(run_ / "group");
    for (const char* name : {"memory.max", "memory.limit_in_bytes"})
      write_text(run_ / concat("group/", name), concat(limit_bytes, "\n"));
    for (const char* name : {"memory.current", "memory.usage_in_bytes"}) write_text(run_ / concat("group/", name), "4096\n");
    write_text(run_ / "group/memory.stat", "");
    count_memory_kills(0);
  }
  void count_memory_kills(int kills) const {
    for (const char* name : {"memory.events", "memory.oom_control"})
      write_text(run_ / concat("group/", name), concat("oom_kill ", kills, "\n"));
  }
  static constexpr const char* kInGroup = "exec unshare -m sh in_a_group.sh";
  TinyRun run_;

 private:
  pid_t victim_ = -1;
};

}  // namespace octet::testing
