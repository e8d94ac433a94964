#include "octet/checkpoint/replica_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "octet/base/require.h"

namespace octet::checkpoint {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // of data in one message

}  // namespace

void ReplicaStream::send(const std::string& topic, const nlohmann::json& json) {
  post(topic, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void ReplicaStream::post(const std::string& topic, std::string text) {
  connection_.send({comm::Message::post, 0, 0, topic, std::move(text)});
  flush();
}

void ReplicaStream::flush() {
  for (;;) {
    demand(connection_.flush(), ExitCode::peer, "has closed its connection");
    if (!connection_.has_output()) return;
    demand(wait(POLLOUT, kSilenceS), ExitCode::peer, "has been silent for ", kSilenceS, " s");
  }
}

void ReplicaStream::send_bytes(std::span<const std::byte> bytes) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const std::span<const std::byte> piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
    post(topic::kData, std::string(reinterpret_cast<const char*>(piece.data()), piece.size()));
  }
}

// poll() counts the silence from its call, and every byte that moves ends the call.
bool ReplicaStream::wait(short events, double silence_s) const {
  pollfd polled{.fd = connection_.fd(), .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&polled, 1, silence_s < 0 ? -1 : static_cast<int>(std::ceil(silence_s * 1e3)));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

std::optional<ReplicaMessage> ReplicaStream::next(double silence_s) {
  flush();  // the end of the handshake
  for (bool open = true;;) {
    if (std::optional<comm::Frame> frame = connection_.next()) {
      if (frame->kind == comm::Message::post)
        return ReplicaMessage{.topic = std::move(frame->key), .text = std::move(frame->value)};
      continue;
    }
    if (!open) {
      demand(connection_.unread() == 0, ExitCode::peer, "has closed its connection");
      return std::nullopt;
    }
    demand(wait(POLLIN, silence_s), ExitCode::peer, "has been silent for ", silence_s, " s");
    open = connection_.receive();
  }
}

std::string ReplicaStream::expect(const std::string& topic) {
  std::optional<ReplicaMessage> message = next();
  demand(message.has_value(), ExitCode::peer, "has closed its connection");
  demand(message->topic != topic::kFailed, ExitCode::peer, message->text);
  demand(message->topic == topic, ExitCode::peer, "has sent ", message->topic, " instead of ", topic);
  return std::move(message->text);
}

nlohmann::json ReplicaStream::answer(const std::string& topic) { return parse_json(expect(topic), topic); }

void ReplicaStream::fail(const std::string& sentence) { post(topic::kFailed, sentence); }

void ReplicaStream::receive_bytes(std::span<std::byte> bytes) {
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::string piece = expect(topic::kData);
    demand(!piece.empty() && piece.size() <= bytes.size() - begin, ExitCode::peer, "has sent ", piece.size(), " bytes where ",
           bytes.size() - begin, " were missing");
    std::memcpy(bytes.data() + begin, piece.data(), piece.size());
    begin += piece.size();
  }
}

void ReplicaStream::interrupt() const { ::shutdown(connection_.fd(), SHUT_RDWR); }

}  // namespace octet::checkpoint
