#include "octet/comm/rendezvous_client.h"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/comm/rendezvous_server.h"
#include "octet/telemetry/rank_page.h"

namespace octet::comm {
namespace {

constexpr double kGraceSeconds = 2;  // for the server's message about a timeout, which is more precise than the client's
constexpr const char* kBroken = "closed its connection";

}  // namespace

RendezvousClient::RendezvousClient(Connection connection, int rank, double join_timeout_s, double silence_s)
    : rank_(rank),
      join_timeout_ms_(milliseconds_of(join_timeout_s)),
      silence_(seconds(silence_s)),
      beat_(beat_for(silence_s)),
      exceptions_(std::uncaught_exceptions()),
      connection_(std::move(connection)),
      thread_(start_thread("the connection to rank 0", [this] { run(); })) {}

RendezvousClient::~RendezvousClient() {
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back({std::uncaught_exceptions() > exceptions_ ? Message::failure : Message::goodbye});
    leaving_ = Clock::now() + seconds(kGoodbyeSeconds);
  }
  wake_.poke();
  thread_.join();
}

void RendezvousClient::await_ready() {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::milliseconds(join_timeout_ms_) + seconds(kGraceSeconds);
  changed_.wait_until(lock, deadline, [this] { return ready_ || !ended_.empty(); });
  if (ready_) return;  // if a rank has ended since, the next request says so
  demand(ended_.empty(), ExitCode::peer, "rank ", rank_, " cannot join: ", ended_);
  fail(ExitCode::peer, "rank ", rank_, " cannot join: rank 0 has not answered within ", join_timeout_ms_ / 1e3, " s");
}

void RendezvousClient::post(Frame frame) {
  {
    const std::lock_guard lock(mutex_);
    demand(ended_.empty(), ExitCode::peer, ended_);
    queued_.push_back(std::move(frame));
  }
  wake_.poke();
}

std::string RendezvousClient::request(Frame frame) {
  const std::string subject = frame.kind == Message::meet ? frame.key : concat('"', frame.key, "\" was not set");
  std::unique_lock lock(mutex_);
  demand(ended_.empty(), ExitCode::peer, subject, ": ", ended_);
  const std::uint64_t id = frame.id = next_id_++;
  const auto deadline = Clock::now() + std::chrono::milliseconds(frame.timeout_ms) + seconds(kGraceSeconds);
  queued_.push_back(std::move(frame));
  answers_[id];
  wake_.poke();
  changed_.wait_until(lock, deadline, [&] { return answers_.at(id) || !ended_.empty(); });
  const std::optional<Answer> answer = std::move(answers_.extract(id).mapped());
  demand(answer.has_value(), ExitCode::peer, subject, ": ", ended_.empty() ? "rank 0 does not answer" : ended_);
  demand(answer->good, ExitCode::peer, answer->text);
  return answer->text;
}

std::vector<RendezvousClient::Loss> RendezvousClient::losses(double wait_s) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, Clock::now() + seconds(wait_s), [this] { return !losses_.empty() || !ended_.empty(); });
  return losses_;
}

std::string RendezvousClient::lost_text(double wait_s) const {
  std::string text;
  for (const Loss& loss : losses(wait_s)) text += concat(text.empty() ? "" : "; ", "rank ", loss.rank, " ", loss.how);
  return text;
}

void RendezvousClient::run() {
  auto heard = Clock::now(), turn = heard, sent = heard;
  bool open = take_messages();  // which the handshake may already have received
  while (open && send_queued()) {
    const short output = connection_.has_output() ? POLLOUT : 0;
    pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {connection_.fd(), static_cast<short>(POLLIN | output), 0}};
    ::poll(polled, 2, milliseconds_until(turn + beat_));
    wake_.clear();

    const auto now = Clock::now();
    telemetry::own_page().alive_ns.store(telemetry::monotonic_ns(), std::memory_order_relaxed);
    // After such a long turn this process itself must have been suspended. Rank 0's messages of that time are still to be read.
    if (polled[1].revents != 0 || now - turn > beat_ + silence_ / 2) heard = now;
    turn = now;
    const bool alive = connection_.receive();
    open = take_messages();
    if (open && !alive) {
      lose_server(kBroken);
      break;
    }
    if (now - heard > silence_) {
      lose_server(concat("has been silent for ", std::chrono::duration<double>(silence_).count(), " s"));
      break;
    }
    if (now - sent >= beat_ && !connection_.has_output()) {
      connection_.send({});
      sent = now;
    }
  }
  connection_.close();
}

bool RendezvousClient::take_messages() {
  try {
    while (auto frame = connection_.next()) handle(*std::move(frame));
    return true;
  } catch (const Error& error) {
    lose_server(error.what());
    return false;
  }
}

bool RendezvousClient::send_queued() {
  std::optional<Clock::time_point> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (const Frame& frame : std::exchange(queued_, {})) connection_.send(frame);
    leaving = leaving_;
  }
  // A failure to send does not end the connection yet: what the server sent before it closed is still to be read.
  connection_.flush();
  if (!leaving) return true;
  // Closing the socket before the server has closed it could discard data that is still on its way to the server.
  if (!connection_.has_output()) connection_.shut_sending();
  return Clock::now() < *leaving;
}

void RendezvousClient::handle(Frame&& frame) {
  switch (frame.kind) {
    case Message::ping:
      return;
    case Message::goodbye: {
      const std::string cause = lost_text(0);
      return end(cause.empty() ? "rank 0 has left" : cause);
    }
    case Message::refused:
      return end(frame.value);
    default:
      break;
  }
  const std::lock_guard lock(mutex_);
  switch (frame.kind) {
    case Message::ready:
      ready_ = true;
      break;
    case Message::lost:
      losses_.push_back({static_cast<int>(frame.id), std::move(frame.value)});
      break;
    case Message::value:
    case Message::failed: {
      const auto found = answers_.find(frame.id);  // absent if the requester no longer waits
      if (found != answers_.end()) found->second = Answer{frame.kind == Message::value, std::move(frame.value)};
      break;
    }
    default:
      fail(ExitCode::peer, "sent a message that is not a server's");
  }
  changed_.notify_all();
}

void RendezvousClient::end(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (ended_.empty()) ended_ = why;
  changed_.notify_all();
}

void RendezvousClient::lose_server(const std::string& how) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_.empty() && !leaving_) losses_.push_back({0, how});
  }
  end(concat("rank 0 ", how));
}

}  // namespace octet::comm
