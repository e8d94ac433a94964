#include "octet/checkpoint/replica_server.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/signals_held.h"
#include "octet/base/start_thread.h"
#include "octet/base/system_call.h"

namespace octet::checkpoint {
namespace {

constexpr double kTurnS = 1;
constexpr std::size_t kReadAtOnce = std::size_t{4} << 20;

std::size_t bytes_in(const SnapshotSlot& slot) {
  struct stat status {};
  if (::fstat(slot.data, &status) != 0) fail_errno(ExitCode::internal, "cannot read a snapshot");
  return static_cast<std::size_t>(status.st_size);
}

void send_data(ReplicaStream& stream, const SnapshotSlot& slot) {
  std::vector<std::byte> piece(kReadAtOnce);
  for (std::size_t begin = 0, size = bytes_in(slot); begin < size;) {
    const ssize_t n = ::pread(slot.data, piece.data(), std::min(piece.size(), size - begin), static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_errno(ExitCode::internal, "cannot read a snapshot");
    stream.send_bytes({piece.data(), static_cast<std::size_t>(n)});
    begin += static_cast<std::size_t>(n);
  }
}

}  // namespace

ReplicaServer::ReplicaServer(Options options)
    : options_(std::move(options)),
      door_(
          [this] {
            Descriptor listener = comm::listen_at(options_.host, 0, options_.name);
            port_ = comm::port_of(listener);
            return listener;
          }(),
          {.owner = options_.name,
           .token = options_.token,
           .refusal =
               [this](const comm::Claim& claim) {
                 return claim.version == options_.version
                            ? ""
                            : concat("rank ", claim.rank, " is ", claim.version, ", ", options_.name, " is ", options_.version);
               },
           .enter = [this](comm::Guest&& guest) { enter(std::move(guest)); }}) {
  const SignalsHeld held;
  thread_ = start_thread("the server of replicas", [this] { run(); });
}

ReplicaServer::~ReplicaServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.poke();
  thread_.join();
  for (auto& [rank, session] : sessions_) {
    session->stream.interrupt();
    session->thread.join();
  }
}

void ReplicaServer::offer(std::shared_ptr<const SnapshotMemory> memory) {
  const std::lock_guard lock(mutex_);
  own_ = std::move(memory);
}

std::int64_t ReplicaServer::bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& [rank, kept] : kept_) {
    for (const SlotWriter& slot : kept->slots) sum += bytes_taken(slot.slot());
  }
  return sum;
}

void ReplicaServer::run() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    door_.watch(polled);
    ::poll(polled.data(), polled.size(), static_cast<int>(kTurnS * 1e3));
    const auto now = Clock::now();
    door_.handle(std::span(polled).subspan(1), now);
    door_.flush(now);
    std::vector<std::unique_ptr<Session>> ended;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      for (auto session = sessions_.begin(); session != sessions_.end();) {
        if (session->second->done) {
          ended.push_back(std::move(session->second));
          session = sessions_.erase(session);
        } else {
          ++session;
        }
      }
    }
    for (const std::unique_ptr<Session>& session : ended) session->thread.join();
  }
}

void ReplicaServer::enter(comm::Guest&& guest) {
  const int rank = static_cast<int>(guest.claim.rank);
  // A process that was started again replaces the previous one.
  if (const auto before = sessions_.find(rank); before != sessions_.end()) {
    before->second->stream.interrupt();
    before->second->thread.join();
    sessions_.erase(before);
  }
  auto session = std::make_unique<Session>(std::move(guest.connection));
  session->thread = start_thread("a session of replicas", [this, rank, session = session.get()] {
    serve(rank, session->stream);
    const std::lock_guard lock(mutex_);
    session->done = true;
  });
  sessions_.emplace(rank, std::move(session));
}

void ReplicaServer::serve(int rank, ReplicaStream& stream) {
  try {
    while (const std::optional<ReplicaMessage> message = stream.next(-1)) {
      try {
        handle(rank, stream, *message);
      } catch (const std::exception& error) {
        const auto* const known = dynamic_cast<const Error*>(&error);
        if (known && known->code() == ExitCode::peer) throw;
        stream.fail(error.what());
      }
    }
  } catch (const std::exception&) {
    // The connection cannot be used any more. The rank reports the failure.
  }
}

void ReplicaServer::handle(int rank, ReplicaStream& stream, const ReplicaMessage& message) {
  if (message.topic == topic::kEcho) return stream.send(topic::kDone, nlohmann::json::object());
  const nlohmann::json request = parse_json(message.text, message.topic);
  const auto text = [&](const char* key) { return request.at(key).get<std::string>(); };
  const auto number = [&](const char* key) { return request.at(key).get<std::int64_t>(); };
  if (message.topic == topic::kKeep) {
    keep(stream, rank, static_cast<std::size_t>(number("bytes")), parse_manifest_part(text("manifest"), "a replica"),
         number("stays"));
  } else if (message.topic == topic::kFind) {
    const auto ranks = request.at("ranks").get<std::vector<int>>();
    nlohmann::json list = nlohmann::json::array();
    for (const Found& found : all()) {
      for (const int wanted : ranks) {
        if (is_of(found.manifest, text("timeline"), wanted, static_cast<int>(number("size"))))
          list.push_back({{"rank", wanted}, {"bytes", bytes_in(found.slot)}, {"manifest", to_json(found.manifest)}});
      }
    }
    stream.send(topic::kFound, list);
  } else if (message.topic == topic::kRead) {
    for (const Found& found : all()) {
      if (id_of(found.manifest) == SnapshotId{.attempt = number("attempt"), .step = number("step")} &&
          is_of(found.manifest, text("timeline"), static_cast<int>(number("rank")), static_cast<int>(number("size"))))
        return send_data(stream, found.slot);
    }
    stream.fail(concat("has no snapshot of step ", number("step"), " any more"));
  } else if (message.topic == topic::kForget) {
    forget(rank);
    stream.send(topic::kDone, nlohmann::json::object());
  }
}

void ReplicaServer::keep(ReplicaStream& stream, int rank, std::size_t bytes, Manifest manifest, std::int64_t stays) {
  std::shared_ptr<Kept> kept;
  std::size_t chosen = 0;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Kept>& entry = kept_[rank];
    if (!entry) {
      entry = std::make_shared<Kept>();
      for (const SnapshotSlot& slot : entry->memory.slots(0)) entry->slots.emplace_back(slot);
    }
    kept = entry;
    const auto timeline = manifest.meta.at("timeline").get<std::string>();
    if (kept->timeline != timeline) kept->steps.assign(kept->slots.size(), -1);
    kept->timeline = timeline;
    kept->attempt = id_of(manifest).attempt;
    chosen = slot_to_fill(kept->steps, stays);
    kept->steps[chosen] = -1;
    kept->receives = true;
  }
  const auto end = [&](std::int64_t step) {
    const std::lock_guard lock(mutex_);
    kept->steps[chosen] = step;
    kept->receives = false;
    give_back_outdated_by(*kept);
  };
  try {
    SlotWriter& slot = kept->slots[chosen];
    slot.empty();
    std::byte* const memory = slot.make_room(bytes);
    stream.send(topic::kReady, nlohmann::json::object());
    stream.receive_bytes({memory, bytes});
    slot.publish(manifest);
  } catch (...) {
    end(-1);
    throw;
  }
  end(manifest.step);
  stream.send(topic::kDone, nlohmann::json::object());
}

void ReplicaServer::give_back_outdated_by(const Kept& kept) {
  const std::int64_t oldest = *std::min_element(kept.steps.begin(), kept.steps.end());
  std::erase_if(kept_, [&](const auto& entry) {
    const Kept& other = *entry.second;
    const bool is_old = other.timeline == kept.timeline ? *std::max_element(other.steps.begin(), other.steps.end()) < oldest
                                                        : other.attempt < kept.attempt;
    return is_old && !other.receives;
  });
}

void ReplicaServer::forget(int rank) {
  const std::lock_guard lock(mutex_);
  const auto kept = kept_.find(rank);
  if (kept == kept_.end()) return;
  for (SlotWriter& slot : kept->second->slots) slot.empty();
  kept->second->steps.assign(kept->second->slots.size(), -1);
}

std::vector<ReplicaServer::Found> ReplicaServer::all() const {
  std::vector<Found> list;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, kept] : kept_) {
      for (const SlotWriter& slot : kept->slots) list.push_back({.slot = slot.slot(), .manifest = {}, .owner = kept});
    }
    for (int rank = 0; own_ && rank < own_->ranks(); ++rank) {
      for (const SnapshotSlot& slot : own_->slots(rank)) list.push_back({.slot = slot, .manifest = {}, .owner = own_});
    }
  }
  std::erase_if(list, [](Found& found) {
    std::optional<Manifest> manifest = manifest_in(found.slot);
    if (manifest) found.manifest = *std::move(manifest);
    return !manifest;
  });
  return list;
}

}  // namespace octet::checkpoint
