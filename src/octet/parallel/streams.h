// The streams of a rank, by what runs on them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "octet/device/device.h"

namespace octet::parallel {

// Each kind of message has a stream in each direction. States are fetched on one stream and copied back on another, because a
// link between host and device carries both directions at once.
enum class StreamId : std::uint8_t {
  compute,
  params,  // parameters and their gradients
  receive_activations,
  receive_gradients,
  send_activations,
  send_gradients,
  fetch,
  offload,
  experts,  // rows of experts, if another micro-batch computes meanwhile
  context,  // keys and their gradients, which must not wait for those of parameters
  tensor,   // tokens of the tensor axis, which are fetched during products
};
inline constexpr std::size_t kStreams = 11;

class Streams {
 public:
  // At first everything runs on the computation's stream, which outlives this.
  explicit Streams(Stream& compute) { of_.fill(&compute); }
  Stream& operator[](StreamId id) const { return *of_[static_cast<std::size_t>(id)]; }
  // Lets an id share a stream, which outlives this, or gives it a new one.
  void set(StreamId id, Stream& stream) { of_[static_cast<std::size_t>(id)] = &stream; }
  void make(StreamId id) { set(id, *made_.emplace_back((*this)[StreamId::compute].device().make_stream())); }

 private:
  std::array<Stream*, kStreams> of_;
  std::vector<std::unique_ptr<Stream>> made_;
};

}  // namespace octet::parallel
