// A network switch in user space, which joins the hosts of a test (support/hosts.h). Each host has a cable to it. Frames from one
// host to another can be lost, late or few; what happens to them comes from a seed and not from the kernel, so every kernel with
// TAP devices will do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "octet/base/clock.h"
#include "octet/base/descriptor.h"
#include "octet/base/rng.h"

namespace octet::testing {

// The way from one host to another.
struct Link {
  double loss = 0;         // the share of frames that are lost; 1: the link is cut
  double delay_s = 0;      // how long each frame travels
  double bytes_per_s = 0;  // 0: no limit
};

class Switch {
 public:
  // The last byte of a host's hardware address is its place among the ports, which are TAP devices, counted from 1.
  explicit Switch(std::vector<Descriptor> ports);
  ~Switch();
  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;

  void set_link(int from, int to, const Link& link);
  // A cable that is pulled out carries nothing in either direction.
  void set_plugged(int port, bool plugged);

 private:
  struct Way {
    Link link;
    Clock::time_point free{};  // when the frames that are on the way have left
  };
  struct Frame {
    int to;
    std::vector<std::byte> bytes;
  };
  void run();
  void read_from(int port);
  void send(int from, int to, const std::byte* bytes, std::size_t count);
  void deliver_due();
  void write_to(int port, const std::byte* bytes, std::size_t count) const;
  Way& way(int from, int to) { return ways_[static_cast<std::size_t>(from) * ports_.size() + static_cast<std::size_t>(to)]; }

  std::vector<Descriptor> ports_;
  Descriptor ends_;  // readable when the switch shall end
  std::mutex mutex_;
  std::vector<Way> ways_;
  std::vector<bool> plugged_;
  std::multimap<Clock::time_point, Frame> late_;  // by the time of their arrival
  const Rng rng_{1, RngStream::test};
  std::uint64_t frames_ = 0;
  std::thread thread_;
};

}  // namespace octet::testing
