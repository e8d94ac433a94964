// How a rank and the supervisor of another host exchange snapshots. Over a connection of comm/handshake.h they send messages of
// the kind `post`. Each is JSON, except `data` and `echo`, which hold bytes, and `failed`, which is a sentence. The rank asks,
// the supervisor answers.
//   keep      {"rank", "bytes", "manifest", "stays"}      keeps a snapshot, not in the place of that of step `stays`; answered by
//                                                         `ready`, then after data by `done`
//   find      {"ranks", "size", "timeline"}               answered by `found` [{"rank", "bytes", "manifest"}, ..]
//   read      {"rank", "size", "timeline", "attempt", "step"}  answered by data
//   forget    {}                                          drops the rank's snapshots; answered by `done`
//   echo      any bytes                                   answered by `done`; with it a gate measures the link between two hosts
// Instead of an answer, the supervisor may send `failed`.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "octet/base/json.h"
#include "octet/comm/connection.h"

namespace octet::checkpoint {

namespace topic {
inline constexpr const char* kKeep = "keep";
inline constexpr const char* kFind = "find";
inline constexpr const char* kFound = "found";
inline constexpr const char* kRead = "read";
inline constexpr const char* kForget = "forget";
inline constexpr const char* kEcho = "echo";
inline constexpr const char* kData = "data";
inline constexpr const char* kReady = "ready";
inline constexpr const char* kDone = "done";
inline constexpr const char* kFailed = "failed";
}  // namespace topic

struct ReplicaMessage {
  std::string topic, text;
};

// One end of such a connection, for a thread that may block. Calls throw Error{peer} "has closed its connection", or "has been
// silent for 30 s" if the other end neither reads nor writes for that long.
class ReplicaStream {
 public:
  static constexpr double kSilenceS = 30;

  explicit ReplicaStream(comm::Connection connection) : connection_(std::move(connection)) {}

  void send(const std::string& topic, const nlohmann::json& json);
  void send_bytes(std::span<const std::byte> bytes);
  void fail(const std::string& sentence);
  // Waits for the next message. Returns nothing if the other end has closed the connection between two messages.
  // silence_s < 0: waits as long as it takes.
  std::optional<ReplicaMessage> next(double silence_s = kSilenceS);
  // Returns the answer to a request. If the other end has failed, throws Error{peer} with its sentence.
  nlohmann::json answer(const std::string& topic);
  void receive_bytes(std::span<std::byte> bytes);
  // Makes a waiting thread continue at once, with an error. Any thread may call it.
  void interrupt() const;

 private:
  void post(const std::string& topic, std::string text);
  std::string expect(const std::string& topic);
  void flush();
  bool wait(short events, double silence_s) const;

  comm::Connection connection_;
};

}  // namespace octet::checkpoint
