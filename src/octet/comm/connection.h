// One end of a rendezvous connection. It sends and receives whole messages over a nonblocking socket.
//   stream    in both directions: "OctetRv2", then messages
//   message   little-endian: u32 number of bytes that follow | u8 kind | u64 id | u32 timeout_ms | u32 key length | key | value
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "octet/comm/socket.h"

namespace octet::comm {

enum class Message : std::uint8_t {
  // sent by a rank
  hello,    // id: rank, key: nonce and proof, value: "SIZE VERSION"; answered by `welcome` or `refused`
  ping,     // sent in both directions as a sign of life
  goodbye,  // sent in both directions: this end leaves
  failure,  // sent instead of goodbye: this rank ends with an error
  set,      // key, value; id: number of reads after which the key goes, or 0
  get,      // key; answered by value or failed
  meet,     // key, value; answered by value or failed once all ranks have sent it; all values must be equal
  // sent by the server; refused and failed have a sentence as their value
  challenge,  // the first message; value: nonce
  welcome,    // value: proof
  ready,      // all ranks have joined
  refused,
  value,
  failed,
  lost,  // id: the lost rank, value: what happened to it
  // sent in both directions between supervisors
  post,  // key: what it is about, value: JSON
};

struct Frame {
  Message kind = Message::ping;
  std::uint64_t id = 0;  // of a request and of its answer
  std::uint32_t timeout_ms = 0;
  std::string key = {}, value = {};
};

inline constexpr std::size_t kMaxKey = 4096, kMaxValue = std::size_t{64} << 20;
inline constexpr double kGoodbyeSeconds = 1;    // how long an end that has sent goodbye waits for the other end's goodbye
inline constexpr std::size_t kMaxHello = 4096;  // limit of what is sent before the handshake has ended

// Appends the lowest bytes of the value, little-endian.
void put(std::string& out, std::uint64_t value, int bytes);

class Connection {
 public:
  explicit Connection(Descriptor socket);

  int fd() const { return socket_.get(); }
  const Descriptor& socket() const { return socket_; }
  bool open() const { return socket_.open(); }
  void close() { socket_.close(); }
  // Closes the sending direction. What the other end still sends can be received.
  void shut_sending() const;

  void send(const Frame& frame);  // appends the message to the output, which flush() sends
  bool has_output() const { return sent_ < output_.size(); }
  std::size_t unsent() const { return output_.size() - sent_; }
  // Bytes that were received and not yet returned by next().
  std::size_t unread() const { return input_.size() - taken_; }
  // These send or receive what is possible without waiting and return false if the connection has ended. After receive() returned
  // false, next() may still have messages. receive() stops once unread() is `most` bytes.
  bool flush();
  bool receive(std::size_t most = SIZE_MAX);
  // Returns the next complete message of at most max_bytes, if there
  // is one. Throws Error{peer} if the input is not a valid message.
  std::optional<Frame> next(std::size_t max_bytes = 64 + kMaxKey + kMaxValue);

 private:
  Descriptor socket_;
  std::string input_, output_;
  std::size_t taken_ = 0, sent_ = 0;  // bytes of input_ and output_ that have been processed
  bool greeted_ = false;
};

}  // namespace octet::comm
