// Several hosts on one machine, for tests. Each has a network, a host name, process ids and a loopback interface of its own, and
// a cable to a switch; its file system is the machine's. Nothing of them outlives the test, however it ends: each host is the
// namespaces of a process that dies with the test, and the switch is a thread of the test.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "support/switch.h"

namespace octet::testing {

class Hosts {
 public:
  // Why there can be no hosts here; "" if there can.
  static std::string refusal();

  explicit Hosts(int count);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  int count() const { return static_cast<int>(hosts_.size()); }
  // "10.91.0.1" and so on; the name is "host0" and so on.
  static std::string address(int host);
  // "10.91.0.1,10.91.0.2", and so on.
  std::string list() const;
  // What a shell puts before a command so that it runs on this host. The command dies with the shell's process.
  std::string on(int host) const;
  // The cable of a host is pulled out, and put back.
  void unplug(int host) const { switch_->set_plugged(host, false); }
  void plug(int host) const { switch_->set_plugged(host, true); }
  // What one host sends to another is slow or lost from now on; the other way is not touched. heal() takes it back.
  void set_link(int from, int to, const Link& link) const { switch_->set_link(from, to, link); }
  void cut(int from, int to) const { set_link(from, to, {.loss = 1}); }
  void heal(int from, int to) const { set_link(from, to, {}); }
  // All processes of a host end at once, and those elsewhere hear nothing of it. The host is on again at once, with the cable
  // out.
  void power_off(int host) const;
  // All processes of a host stand still, and go on.
  void freeze(int host) const;
  void thaw(int host) const;

 private:
  pid_t start(const std::string& name) const;
  pid_t first_process(int host) const;
  void signal_all(int host, int signal) const;

  std::vector<pid_t> hosts_;
  std::unique_ptr<Switch> switch_;
};

// The child of a process, or -1.
pid_t only_child_of(pid_t process);
// Returns this process if the other one has gone.
pid_t parent_of(pid_t process);

}  // namespace octet::testing
