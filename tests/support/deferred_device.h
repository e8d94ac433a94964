// A CPU whose streams run beside each other, as those of a GPU do: for tests that demand the same bits in any order that the
// waits permit. On a GPU a missing wait is a race, which shows now and then. Here it shows as other bits, every time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "octet/device/device.h"

namespace octet::testing {

class DeferredStream;

// Streams keep what they are given. When the host waits for a stream, or frees memory, the device executes what its streams hold:
// a stretch of one stream up to the next event or wait, then a stretch of a stream chosen at random, and so on. What nobody waits
// for stays where it is as long as possible.
//
// The operations of groups block, so all ranks of a group must enter them in the same order. They do: one seed gives all ranks
// the same choices. Ranks may have different ops, but they enqueue the same events and waits, and only these decide what there is
// to choose from.
//
// Messages block no other stream: a thread ends each of them. Streams of messages go on as soon as they can, and a stream that
// waits for a message goes on when no other one can. So it does not matter for the choices when messages arrive.
class DeferredDevice final : public Device {
 public:
  // If the computation, which is the first stream, and another stream could both go on, the other one does with probability
  // `others_first`. With 1 exchanges come as early as the waits permit, with 0 as late.
  explicit DeferredDevice(double others_first, std::uint64_t seed = 1) : others_first_(others_first), random_(seed) {}

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::unique_ptr<Stream> make_stream() override;
  // Executes everything.
  void finish();
  // The number of stretches that a stream began before another stream had executed what it was given earlier.
  std::int64_t overtakings() const { return overtakings_; }

 protected:
  void* acquire(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) override;
  void* acquire_host(std::size_t bytes) override;
  void release_host(void* memory, std::size_t bytes) override;

 private:
  friend class DeferredStream;
  void run_a_stretch();
  // Lets the streams of messages go on. Returns whether one did.
  bool run_messages();
  // Executes everything unless an exception ends the test: other ranks then no longer take part.
  void finish_or_drop();
  // Whether memory must stay as it is until a copy from it is done, as that of MemoryCategory::host.
  bool is_of_host(const void* memory) const;

  const double others_first_;
  std::mt19937_64 random_;
  std::vector<DeferredStream*> streams_;  // in the order in which they were made
  std::map<const std::byte*, std::size_t> host_memory_;
  std::int64_t items_ = 0, overtakings_ = 0;
};

}  // namespace octet::testing
