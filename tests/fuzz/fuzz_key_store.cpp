// Takes any bytes as the requests of three ranks to the store of the rendezvous. Each accepted request must be answered once, a
// value must be the last one that was set, and no rank may exceed its quota.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "octet/base/require.h"
#include "octet/comm/key_store.h"

namespace {

using namespace octet::comm;

constexpr int kRanks = 3;
constexpr Quota kQuota{.keys = 3, .bytes = 64, .requests = 4};

void hold(bool holds) {
  if (!holds) std::abort();
}

// The requests of the ranks and what a reader of key_store.h expects of the answers.
class Model {
 public:
  void serve(int rank, Frame request) {
    const Message kind = request.kind;
    const std::string key = request.key, value = request.value;
    const std::uint64_t id = kind == Message::set ? 0 : ++last_id_;
    if (kind != Message::set) request.id = id;
    const std::size_t keys = store_.keys(), answers = answers_;
    if (kind == Message::set) {
      setting_ = value;
    } else {
      open_[id] = {rank, kind, key};
    }
    setting_key_ = kind == Message::set ? key : "";
    try {
      store_.serve(rank, std::move(request), now_);
      if (kind == Message::set) values_[key] = value;
      hold(waiting(rank) <= kQuota.requests);
    } catch (const octet::Error& error) {
      hold(error.code() == octet::ExitCode::peer);
      hold(store_.keys() == keys && answers_ == answers);
      open_.erase(id);
    }
    setting_key_.clear();
    hold(store_.keys() <= kRanks * kQuota.keys && store_.keys() <= values_.size());
  }
  void leave(int rank) { store_.leave(rank); }
  void lose(int rank) {
    store_.lose(rank, "is lost");
    hold(open_.empty());
  }
  void pass(std::uint32_t milliseconds) {
    now_ += std::chrono::milliseconds(milliseconds);
    store_.expire(now_);
    hold(store_.next_deadline() > now_);
  }
  void end() {
    store_.expire(octet::Clock::time_point::max());
    hold(open_.empty() && store_.next_deadline() == octet::Clock::time_point::max());
  }

 private:
  struct Request {
    int rank;
    Message kind;
    std::string key;
  };

  std::size_t waiting(int rank) const {
    std::size_t count = 0;
    for (const auto& [id, request] : open_) count += request.rank == rank;
    return count;
  }
  void answer(int rank, const Frame& frame) {
    ++answers_;
    const auto request = open_.find(frame.id);
    hold(request != open_.end() && request->second.rank == rank);
    hold(frame.kind == Message::value || frame.kind == Message::failed);
    if (frame.kind == Message::failed) hold(!frame.value.empty());
    if (frame.kind == Message::value && request->second.kind != Message::meet) {
      const std::string& key = request->second.key;
      const bool now = key == setting_key_;  // the request waited for the value that is being set
      hold(now || values_.contains(key));
      hold(frame.value == (request->second.kind == Message::wait ? "" : now ? setting_ : values_.at(key)));
    }
    open_.erase(request);
  }

  octet::Clock::time_point now_{};
  std::map<std::uint64_t, Request> open_;
  std::map<std::string, std::string> values_;
  std::string setting_key_, setting_;
  std::uint64_t last_id_ = 0;
  std::size_t answers_ = 0;
  KeyStore store_{kRanks, [this](int rank, const Frame& frame) { answer(rank, frame); }, kQuota};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::array kKinds = {Message::set, Message::get, Message::wait, Message::meet};
  Model model;
  // Four bytes are one request: rank and kind, key, length and letter of the value, number of reads or time in milliseconds.
  for (; size >= 4; data += 4, size -= 4) {
    const int rank = data[0] % kRanks;
    const std::size_t kind = data[0] / kRanks % 8;
    if (kind < kKinds.size()) {
      const std::string key(1 + data[1] / 8u, static_cast<char>('a' + data[1] % 8));
      const std::string value(data[2] / 4u, static_cast<char>('0' + data[2] % 4));
      model.serve(rank, {kKinds[kind], data[3] % 4u, data[3], key, value});
    } else if (kind == 4) {
      model.leave(rank);
    } else if (kind == 5) {
      model.lose(rank);
    } else {
      model.pass(data[3]);
    }
  }
  model.end();
  return 0;
}
