#include "octet/comm/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "octet/base/require.h"

namespace octet::comm {
namespace {

constexpr std::string_view kGreeting = "OctetRv2";
constexpr std::size_t kLengthBytes = 4, kFixedBytes = 1 + 8 + 4 + 4;  // the length field; the fields between it and the key

std::uint64_t take(std::string_view& in, int bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::uint64_t{static_cast<unsigned char>(in[static_cast<std::size_t>(i)])} << (8 * i);
  in.remove_prefix(static_cast<std::size_t>(bytes));
  return value;
}

}  // namespace

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

Connection::Connection(Descriptor socket) : socket_(std::move(socket)), output_(kGreeting) {}

void Connection::shut_sending() const { ::shutdown(socket_.get(), SHUT_WR); }

void Connection::send(const Frame& frame) {
  require(frame.key.size() <= kMaxKey && frame.value.size() <= kMaxValue, "a message of the rendezvous has ", frame.key.size(),
          " and ", frame.value.size(), " bytes");
  put(output_, kFixedBytes + frame.key.size() + frame.value.size(), 4);
  put(output_, static_cast<std::uint64_t>(frame.kind), 1);
  put(output_, frame.id, 8);
  put(output_, frame.timeout_ms, 4);
  put(output_, frame.key.size(), 4);
  output_ += frame.key;
  output_ += frame.value;
}

bool Connection::flush() {
  // As in receive(), a peer that reads all the time does not delay the others.
  for (int i = 0; i < 16 && has_output(); ++i) {
    const ssize_t n = ::send(socket_.get(), output_.data() + sent_, output_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    sent_ += static_cast<std::size_t>(n);
  }
  if (has_output()) return true;
  output_.clear();
  sent_ = 0;
  return true;
}

bool Connection::receive(std::size_t most) {
  char bytes[1 << 16];
  // The number of reads is limited, so that a peer that sends without pause does not delay the others.
  for (int i = 0; i < 16 && unread() < most; ++i) {
    const ssize_t n = ::recv(socket_.get(), bytes, std::min(sizeof(bytes), most - unread()), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    input_.append(bytes, static_cast<std::size_t>(n));
  }
  return true;
}

std::optional<Frame> Connection::next(std::size_t max_bytes) {
  std::string_view rest = std::string_view(input_).substr(taken_);
  if (!greeted_) {
    const std::size_t common = std::min(rest.size(), kGreeting.size());
    demand(rest.substr(0, common) == kGreeting.substr(0, common), ExitCode::peer,
           "does not use the rendezvous protocol of this version of Octet");
    if (common < kGreeting.size()) return std::nullopt;
    greeted_ = true;
    taken_ += common;
    rest.remove_prefix(common);
  }
  std::string_view head = rest;
  std::optional<Frame> frame;
  if (rest.size() >= kLengthBytes) {
    const std::size_t length = take(head, 4);
    demand(length >= kFixedBytes && length <= max_bytes, ExitCode::peer, "sent a message of ", length, " bytes");
    if (head.size() >= length) {
      frame.emplace();
      head = head.substr(0, length);
      const std::uint64_t kind = take(head, 1);
      demand(kind <= static_cast<std::uint64_t>(Message::post), ExitCode::peer, "sent a message of kind ", kind);
      frame->kind = static_cast<Message>(kind);
      frame->id = take(head, 8);
      frame->timeout_ms = static_cast<std::uint32_t>(take(head, 4));
      const std::size_t key = take(head, 4);
      demand(key <= std::min(head.size(), kMaxKey), ExitCode::peer, "sent a key of ", key, " bytes");
      frame->key = head.substr(0, key);
      head.remove_prefix(key);
      demand(head.size() <= kMaxValue, ExitCode::peer, "sent a value of ", head.size(), " bytes");
      frame->value = head;
      taken_ += kLengthBytes + length;
    }
  }
  if (!frame && taken_ > 0) {
    input_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

}  // namespace octet::comm
