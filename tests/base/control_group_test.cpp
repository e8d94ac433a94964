#include "octet/base/control_group.h"

#include <gtest/gtest.h>

#include <functional>

#include "octet/base/require.h"
#include "support/folder.h"

namespace octet {
namespace {

constexpr std::int64_t kMib = 1 << 20;

// A made-up /proc and /sys in a temporary folder.
class MadeUpSystem {
 public:
  MadeUpSystem() { write("proc/meminfo", "MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable: 4096 kB\n"); }
  const std::filesystem::path& root() const { return folder_.path(); }
  void write(const std::string& name, const std::string& text) { folder_.write(name, text); }
  // Makes a folder in the place of a file, so that not even root can read the file.
  void write_unreadable(const std::string& name) { std::filesystem::create_directories(folder_ / name); }

  // Puts this process into `group` of version 2. The mounted hierarchy begins at the group `top`.
  void mount_v2(const std::string& group, const std::string& top = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 " + top +
                                     " /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n");
    std::filesystem::create_directories(folder_ / "sys/fs/cgroup");
  }
  void mount_v1(const std::string& group) {
    write("proc/self/cgroup",
          "5:cpuset:/elsewhere\n4:cpu,cpuacct:" + group + "\n3:memory:" + group + "\n1:name=systemd:/\n0::/\n");
    write("proc/self/mountinfo",
          "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
          "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST(ControlGroup, ReadsVersion2) {
  MadeUpSystem system;
  system.mount_v2("/job");
  system.write("sys/fs/cgroup/job/memory.max", "4194304\n");
  system.write("sys/fs/cgroup/job/memory.current", "3145728\n");
  system.write("sys/fs/cgroup/job/memory.stat", "anon 2097152\nfile 1048576\ninactive_file 262144\nactive_file 524288\nshmem 5\n");
  system.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  const GroupMemory memory = group_memory(system.root());
  EXPECT_EQ(joined(memory.unread), "");
  EXPECT_EQ(memory.limit_bytes, 4 * kMib);
  EXPECT_EQ(memory.free_bytes, kMib + 262144 + 524288);
  EXPECT_EQ(memory.limited_by, system.root() / "sys/fs/cgroup/job");
  const GroupCores cores = group_cores(system.root());
  EXPECT_EQ(joined(cores.unread), "");
  EXPECT_EQ(cores.quota, 1.5);
}

TEST(ControlGroup, ReadsVersion1) {
  MadeUpSystem system;
  system.mount_v1("/docker/a");
  const std::string memory_folder = "sys/fs/cgroup/memory/", cpu_folder = "sys/fs/cgroup/cpu,cpuacct/";
  for (const char* group : {"", "docker/", "docker/a/"}) {
    system.write(memory_folder + group + "memory.limit_in_bytes", "9223372036854771712\n");
    system.write(cpu_folder + group + "cpu.cfs_quota_us", "-1\n");
    system.write(cpu_folder + group + "cpu.cfs_period_us", "100000\n");
  }
  EXPECT_EQ(group_memory(system.root()).limit_bytes, std::nullopt);
  EXPECT_EQ(joined(group_memory(system.root()).unread), "");
  EXPECT_EQ(group_cores(system.root()).quota, std::nullopt);
  EXPECT_EQ(joined(group_cores(system.root()).unread), "");

  system.write(memory_folder + "docker/memory.limit_in_bytes", "2097152\n");
  system.write(memory_folder + "docker/memory.usage_in_bytes", "2000000\n");
  // The values without "total_" leave out the groups below this one, so the reader must take the values with "total_".
  system.write(memory_folder + "docker/memory.stat",
             "inactive_file 1\nactive_file 2\ntotal_inactive_file 1000\ntotal_active_file 100\n");
  system.write(cpu_folder + "docker/a/cpu.cfs_quota_us", "50000\n");
  const GroupMemory memory = group_memory(system.root());
  EXPECT_EQ(joined(memory.unread), "");
  EXPECT_EQ(memory.limit_bytes, 2 * kMib);
  EXPECT_EQ(memory.free_bytes, 2 * kMib - 2000000 + 1100);
  EXPECT_EQ(group_cores(system.root()).quota, 0.5);
}

TEST(ControlGroup, MaxIsNoLimit) {
  MadeUpSystem system;
  system.mount_v2("/");
  system.write("sys/fs/cgroup/memory.max", "max\n");
  system.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(group_memory(system.root()).limit_bytes, std::nullopt);
  EXPECT_EQ(joined(group_memory(system.root()).unread), "");
  EXPECT_EQ(group_cores(system.root()).quota, std::nullopt);
  EXPECT_EQ(joined(group_cores(system.root()).unread), "");
  const HostMemory memory = host_memory(system.root());
  EXPECT_EQ(memory.total_bytes, 8 * kMib);
  EXPECT_EQ(memory.available_bytes, 4 * kMib);
  EXPECT_EQ(memory.limited_by, "");
}

// The outer group has the larger limit, but less memory left than the inner one.
TEST(ControlGroup, TheTightestOfNestedGroupsCounts) {
  MadeUpSystem system;
  system.mount_v2("/outer/inner/leaf");
  system.write("sys/fs/cgroup/outer/memory.max", "6291456\n");
  system.write("sys/fs/cgroup/outer/memory.current", "6000000\n");
  system.write("sys/fs/cgroup/outer/memory.stat", "inactive_file 0\n");
  system.write("sys/fs/cgroup/outer/cpu.max", "200000 100000\n");
  system.write("sys/fs/cgroup/outer/inner/memory.max", "2097152\n");
  system.write("sys/fs/cgroup/outer/inner/memory.current", "1048576\n");
  system.write("sys/fs/cgroup/outer/inner/memory.stat", "inactive_file 0\n");
  system.write("sys/fs/cgroup/outer/inner/cpu.max", "300000 100000\n");
  system.write("sys/fs/cgroup/outer/inner/leaf/memory.max", "max\n");
  const HostMemory memory = host_memory(system.root());
  EXPECT_EQ(joined(memory.unread), "");
  EXPECT_EQ(memory.total_bytes, 2 * kMib);
  EXPECT_EQ(memory.available_bytes, 6291456 - 6000000);
  EXPECT_EQ(memory.limited_by, system.root() / "sys/fs/cgroup/outer");
  EXPECT_EQ(group_cores(system.root()).quota, 2.0);
}

// In a container without a control-group namespace, /proc/self/cgroup shows the path on the machine, but only the container's own
// part of the hierarchy is mounted.
TEST(ControlGroup, ReadsAHierarchyThatIsMountedFromTheMiddle) {
  MadeUpSystem system;
  system.mount_v2("/docker/a/b", "/docker/a");
  system.write("sys/fs/cgroup/memory.max", "max\n");
  system.write("sys/fs/cgroup/b/memory.max", "1048576\n");
  system.write("sys/fs/cgroup/b/memory.current", "48576\n");
  system.write("sys/fs/cgroup/b/memory.stat", "");
  EXPECT_EQ(group_memory(system.root()).free_bytes, 1000000);
  EXPECT_EQ(joined(group_memory(system.root()).unread), "");
}

// The limit is larger than the machine's memory.
TEST(ControlGroup, ALimitAboveTheMachinesMemoryDoesNotCount) {
  MadeUpSystem system;
  system.mount_v2("/");
  system.write("sys/fs/cgroup/memory.max", "1099511627776\n");
  system.write("sys/fs/cgroup/memory.current", "0\n");
  system.write("sys/fs/cgroup/memory.stat", "");
  const HostMemory memory = host_memory(system.root());
  EXPECT_EQ(memory.total_bytes, 8 * kMib);
  EXPECT_EQ(memory.available_bytes, 4 * kMib);
  EXPECT_EQ(memory.limited_by, "");
}

TEST(ControlGroup, SaysWhatItCannotRead) {
  struct Case {
    std::string what;
    std::function<void(MadeUpSystem&)> break_it;
    std::string unread;
  };
  const std::string group = "sys/fs/cgroup/job/";
  const std::vector<Case> cases = {
      {"no groups", [](MadeUpSystem& system) { std::filesystem::remove(system.root() / "proc/self/cgroup"); },
       "proc/self/cgroup: No such file"},
      {"no mounts", [](MadeUpSystem& system) { std::filesystem::remove(system.root() / "proc/self/mountinfo"); },
       "proc/self/mountinfo: No such file"},
      {"not mounted", [](MadeUpSystem& system) { system.write("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n"); },
       "control group /job (memory) is not mounted here"},
      {"of another namespace", [](MadeUpSystem& system) { system.write("proc/self/cgroup", "0::/../other\n"); },
       "control group /../other (memory)"},
      {"no folder", [&](MadeUpSystem& system) { std::filesystem::remove_all(system.root() / group); }, "sys/fs/cgroup/job: "},
      {"limit unreadable",
       [&](MadeUpSystem& system) {
         std::filesystem::remove(system.root() / group / "memory.max");
         system.write_unreadable(group + "memory.max");
       },
       "memory.max: Is a directory"},
      {"limit no number", [&](MadeUpSystem& system) { system.write(group + "memory.max", "many\n"); }, "memory.max: not a number"},
      {"limit too long", [&](MadeUpSystem& system) { system.write(group + "memory.max", "99999999999999999999\n"); },
       "memory.max: not a number"},
      {"no usage", [&](MadeUpSystem& system) { std::filesystem::remove(system.root() / group / "memory.current"); },
       "memory.current: No such file"},
      {"no statistics", [&](MadeUpSystem& system) { std::filesystem::remove(system.root() / group / "memory.stat"); },
       "memory.stat: No such file"},
  };
  for (const Case& one : cases) {
    MadeUpSystem system;
    system.mount_v2("/job");
    system.write(group + "memory.max", "2097152\n");
    system.write(group + "memory.current", "1000000\n");
    system.write(group + "memory.stat", "inactive_file 0\n");
    ASSERT_EQ(joined(host_memory(system.root()).unread), "");
    one.break_it(system);
    const HostMemory memory = host_memory(system.root());
    EXPECT_NE(joined(memory.unread).find(one.unread), std::string::npos) << one.what << ": " << joined(memory.unread);
    EXPECT_EQ(memory.total_bytes, one.what == "no usage" || one.what == "no statistics" ? 2 * kMib : 8 * kMib) << one.what;
  }
  MadeUpSystem system;
  system.mount_v1("/a");
  std::filesystem::create_directories(system.root() / "sys/fs/cgroup/memory/a");
  EXPECT_NE(joined(group_memory(system.root()).unread).find("memory/a/memory.limit_in_bytes: No such file"), std::string::npos);
}

// If the usage of a limited group is unknown, the limit still bounds the available memory.
TEST(ControlGroup, AnUnknownUsageIsNotMoreThanTheLimit) {
  MadeUpSystem system;
  system.mount_v2("/");
  system.write("sys/fs/cgroup/memory.max", "2097152\n");
  EXPECT_EQ(host_memory(system.root()).available_bytes, 2 * kMib);
}

TEST(ControlGroup, CountsTheProcessesThatTheKernelKilled) {
  MadeUpSystem system;
  system.mount_v2("/job");
  system.write("sys/fs/cgroup/memory.events", "oom 9\noom_kill 9\n");
  system.write("sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 812\noom 4\noom_kill 3\noom_group_kill 1\n");
  EXPECT_EQ(memory_kills(system.root()), 3);
  system.mount_v1("/docker/a");
  const std::string control = "sys/fs/cgroup/memory/docker/a/memory.oom_control";
  system.write(control, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(memory_kills(system.root()), 2);
  system.write(control, "oom_kill_disable 0\nunder_oom 0\n");
  EXPECT_EQ(memory_kills(system.root()), std::nullopt) << "kernels before 4.13 do not count";
  std::filesystem::remove(system.root() / control);
  EXPECT_EQ(memory_kills(system.root()), std::nullopt);
  EXPECT_EQ(memory_kills(system.root() / "nowhere"), std::nullopt);
}

TEST(ControlGroup, SaysWhichQuotaItCannotRead) {
  MadeUpSystem system;
  system.mount_v2("/");
  system.write("sys/fs/cgroup/cpu.max", "many 100000\n");
  EXPECT_NE(joined(group_cores(system.root()).unread).find("cpu.max: not a quota and a period"), std::string::npos);
  system.mount_v1("/");
  system.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  EXPECT_NE(joined(group_cores(system.root()).unread).find("cpu.cfs_period_us: No such file"), std::string::npos);
}

TEST(ControlGroup, ReadsThisMachine) {
  const HostMemory memory = host_memory();
  ASSERT_TRUE(memory.total_bytes && memory.available_bytes) << joined(memory.unread);
  EXPECT_GT(*memory.available_bytes, 0);
  EXPECT_GE(*memory.total_bytes, *memory.available_bytes);
}

}  // namespace
}  // namespace octet
