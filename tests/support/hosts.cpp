#include "support/hosts.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "octet/base/require.h"

namespace octet::testing {
namespace {

bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

void must(const std::string& command) { require(shell(command), "a host of a test: ", command); }

std::string in(pid_t process) { return concat("nsenter -t ", process, " -n -u -- "); }

std::string cable(int host) { return concat("cable", host); }

}  // namespace

std::string Hosts::refusal() {
  if (::geteuid() != 0) return "hosts are namespaces, which only root can make";
  if (!shell("ip -V") || !shell("nsenter -V")) return "hosts need `ip` (Debian: iproute2) and `nsenter`";
  if (!shell("unshare -n -u ip link add trial type bridge")) return "this kernel makes no network namespaces with bridges";
  return "";
}

// A child in namespaces of its own, which waits until it or the test dies.
pid_t Hosts::start(const std::string& name) const {
  int ready[2];
  require(::pipe(ready) == 0, "a pipe of a test");
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool apart = ::unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 && ::sethostname(name.c_str(), name.size()) == 0;
    const char answer = apart ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1 || !apart) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 'n';
  require(::read(ready[0], &answer, 1) == 1 && answer == 'y', "no namespaces for ", name);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

Hosts::Hosts(int count) : switch_(start("switch")) {
  must(in(switch_) + "ip link add switch type bridge");
  must(in(switch_) + "ip link set switch up");
  for (int host = 0; host < count; ++host) {
    const pid_t process = start(concat("host", host));
    hosts_.push_back(process);
    must(concat(in(switch_), "ip link add ", cable(host), " type veth peer name eth0 netns ", process));
    must(concat(in(switch_), "ip link set ", cable(host), " master switch up"));
    must(in(process) + "ip link set lo up");
    must(concat(in(process), "ip address add ", address(host), "/24 dev eth0"));
    must(in(process) + "ip link set eth0 up");
  }
}

Hosts::~Hosts() {
  hosts_.push_back(switch_);
  for (const pid_t process : hosts_) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
}

std::string Hosts::address(int host) { return concat("10.91.0.", host + 1); }

std::string Hosts::on(int host) const { return in(hosts_[static_cast<std::size_t>(host)]); }

void Hosts::unplug(int host) const { must(concat(in(switch_), "ip link set ", cable(host), " down")); }
void Hosts::plug(int host) const { must(concat(in(switch_), "ip link set ", cable(host), " up")); }

void Hosts::cut(int from, int to) const { must(concat(on(from), "ip route add blackhole ", address(to))); }

}  // namespace octet::testing
