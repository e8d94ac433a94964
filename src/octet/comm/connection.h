// One end of a rendezvous connection: whole messages over a socket that does not block.
//   stream    both ways: "OctetRv1", then messages
//   message   u32 bytes that follow | u8 kind | u64 id | u32 timeout_ms | u32 bytes of key | key | value     (little-endian)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "octet/comm/socket.h"

namespace octet::comm {

enum class Message : std::uint8_t {
  // of a rank
  hello,    // id: rank, value: number of ranks; answered by ready (all ranks are here) or refused
  ping,     // both ways
  goodbye,  // both ways
  failure,  // instead of goodbye: this rank ends with an error
  set,      // key, value
  get,      // key; answered by value or failed
  wait,     // the same without the value
  meet,     // key, value: answered by value or failed when all ranks have sent it; their values must agree
  // of the server; value: the text of a sentence
  ready,
  refused,
  value,
  failed,
  lost,  // id: rank, value: what became of it
};

struct Frame {
  Message kind = Message::ping;
  std::uint64_t id = 0;  // of a request and its answer
  std::uint32_t timeout_ms = 0;
  std::string key = {}, value = {};
};

inline constexpr std::size_t kMaxKey = 4096, kMaxValue = std::size_t{64} << 20;
inline constexpr double kGoodbyeSeconds = 1;  // how long who has said goodbye waits for the other's
inline constexpr std::size_t kMaxHello = 64;  // bytes of the first message: strangers are not given more room

class Connection {
 public:
  explicit Connection(Descriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return socket_.open(); }
  void close() { socket_.close(); }
  // Nothing more is sent; what the other end still sends can be received.
  void shut_sending() const;

  void send(const Frame& frame);  // queued for flush
  bool has_output() const { return sent_ < output_.size(); }
  // These do what they can without waiting; false: the connection is over. After a false receive, next() may have messages.
  bool flush();
  bool receive();
  // The next whole message of at most max_bytes. Throws Error{peer} when what came is none.
  std::optional<Frame> next(std::size_t max_bytes = 64 + kMaxKey + kMaxValue);

 private:
  Descriptor socket_;
  std::string input_, output_;
  std::size_t taken_ = 0, sent_ = 0;  // bytes of input_ and output_ that are done with
  bool greeted_ = false;
};

}  // namespace octet::comm
