#include "support/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/start_thread.h"

namespace octet::testing {
namespace {

bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

void must(const std::string& command) { require(shell(command), "a host of a test: ", command); }

std::string in(pid_t process) { return concat("nsenter -t ", process, " -n -u -- "); }

// The host's end of its cable is the interface eth0. Returns the other end.
Descriptor lay_cable(pid_t process) {
  Descriptor cable;
  // A thread can enter the host's network by itself.
  start_thread("a cable", [&] {
    const Descriptor network(::open(concat("/proc/", process, "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    if (::setns(network.get(), CLONE_NEWNET) != 0) return;
    cable = Descriptor(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
    ifreq request{};
    std::strcpy(request.ifr_name, "eth0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (::ioctl(cable.get(), TUNSETIFF, &request) != 0) cable.close();
  }).join();
  require(cable.open(), "no cable to a host of a test");
  return cable;
}

void die_with_parent() { ::prctl(PR_SET_PDEATHSIG, SIGKILL); }

// The first process of a host: what ends without a parent there is its child.
[[noreturn]] void run_host() {
  die_with_parent();
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  ::mount("proc", "/proc", "proc", 0, nullptr);
  for (;;) {
    ::wait(nullptr);
    ::usleep(20'000);
  }
}

// Starts the host again whenever its first process is killed.
[[noreturn]] void keep_host_on() {
  for (;;) {
    const pid_t power = ::fork();
    if (power == 0) {
      die_with_parent();
      if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) ::_exit(1);
      const pid_t first = ::fork();
      if (first == 0) run_host();
      ::waitpid(first, nullptr, 0);
      ::_exit(0);
    }
    ::waitpid(power, nullptr, 0);
  }
}

}  // namespace

pid_t parent_of(pid_t process) {
  std::ifstream status(concat("/proc/", process, "/status"));
  for (std::string word; status >> word;) {
    pid_t parent = -1;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return ::getpid();  // it has gone
}

pid_t only_child_of(pid_t process) {
  std::ifstream children(concat("/proc/", process, "/task/", process, "/children"));
  pid_t child = -1;
  return children >> child ? child : -1;
}

std::string Hosts::refusal() {
  if (::geteuid() != 0) return "hosts are namespaces, which only root can make";
  if (!shell("ip -V") || !shell("nsenter -V") || !shell("setpriv -V"))
    return "hosts need `ip` (Debian: iproute2), `nsenter` and `setpriv`";
  if (!shell("unshare -n -u -p -m --fork ip tuntap add trial mode tap"))
    return "this system makes no namespaces with TAP devices (/dev/net/tun)";
  return "";
}

// A child in namespaces of its own, which waits until it or the test dies.
pid_t Hosts::start(const std::string& name) const {
  int ready[2];
  require(::pipe(ready) == 0, "a pipe of a test");
  const pid_t child = ::fork();
  if (child == 0) {
    die_with_parent();
    const bool apart = ::unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 && ::sethostname(name.c_str(), name.size()) == 0;
    const char answer = apart ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1 || !apart) ::_exit(1);
    keep_host_on();
  }
  char answer = 'n';
  require(::read(ready[0], &answer, 1) == 1 && answer == 'y', "no namespaces for ", name);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

Hosts::Hosts(int count) {
  for (int host = 0; host < count; ++host) hosts_.push_back(start(concat("host", host)));
  std::vector<Descriptor> cables;
  for (int host = 0; host < count; ++host) {
    const pid_t process = hosts_[static_cast<std::size_t>(host)];
    cables.push_back(lay_cable(process));
    must(in(process) + "ip link set lo up");
    // The last byte is what the switch goes by. Long frames are fewer.
    must(concat(in(process), "ip link set eth0 address 02:00:00:00:00:", fmt::format("{:02x}", host + 1), " mtu 9000 up"));
    must(concat(in(process), "ip address add ", address(host), "/24 dev eth0"));
  }
  switch_ = std::make_unique<Switch>(std::move(cables));
}

Hosts::~Hosts() {
  for (const pid_t process : hosts_) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
}

std::string Hosts::address(int host) { return concat("10.91.0.", host + 1); }

std::string Hosts::list() const {
  std::string text = address(0);
  for (int host = 1; host < count(); ++host) text += "," + address(host);
  return text;
}

pid_t Hosts::first_process(int host) const {
  for (int tries = 0; tries < 1000; ++tries) {  // it may just be starting
    const pid_t first = only_child_of(only_child_of(hosts_[static_cast<std::size_t>(host)]));
    if (first > 0) return first;
    ::usleep(5'000);
  }
  throw std::runtime_error(concat("host", host, " has no power"));
}

std::string Hosts::on(int host) const {
  return concat("nsenter -t ", first_process(host), " -n -u -p -m -- setpriv --pdeathsig KILL -- env -C \"$PWD\" ");
}

// The cable is pulled out first, so that no socket that closes tells the others.
void Hosts::power_off(int host) const {
  unplug(host);
  const pid_t first = first_process(host);
  ::kill(first, SIGKILL);
  while (first_process(host) == first) ::usleep(5'000);
}

void Hosts::signal_all(int host, int signal) const {
  const pid_t first = first_process(host);
  const std::string mine = std::filesystem::read_symlink(concat("/proc/", first, "/ns/pid"));
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    std::error_code gone;
    if (process <= 0 || process == first || std::filesystem::read_symlink(entry.path() / "ns/pid", gone) != mine) continue;
    ::kill(process, signal);
    // nsenter, outside of the host, stops itself when its child stands still.
    if (signal == SIGCONT) ::kill(parent_of(process), SIGCONT);
  }
}

void Hosts::freeze(int host) const { signal_all(host, SIGSTOP); }
void Hosts::thaw(int host) const { signal_all(host, SIGCONT); }

}  // namespace octet::testing
