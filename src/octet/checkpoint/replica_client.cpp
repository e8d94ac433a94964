#include "octet/checkpoint/replica_client.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "octet/base/require.h"

namespace octet::checkpoint {
namespace {

constexpr const char* kReplicas = "OCTET_REPLICAS";
constexpr double kConnectS = 5;

std::pair<std::string, int> host_and_port(const std::string& place) {
  const std::size_t colon = place.rfind(':');
  int port = 0;
  if (colon != std::string::npos) std::from_chars(place.data() + colon + 1, place.data() + place.size(), port);
  demand(port > 0, ExitCode::config, kReplicas, " names \"", place, "\", which is not HOST:PORT");
  return {place.substr(0, colon), port};
}

}  // namespace

std::string ReplicaPlaces::variable() const {
  return concat(
      kReplicas, "=",
      nlohmann::json({{"to", to}, {"from", from}, {"ranks_per_host", ranks_per_host}, {"bytes_here", bytes_here}}).dump());
}

std::optional<ReplicaPlaces> inherited_replica_places() {
  const char* const value = std::getenv(kReplicas);
  if (!value) return std::nullopt;
  try {
    const nlohmann::json json = parse_json(value, kReplicas);
    return ReplicaPlaces{.to = json.at("to").get<std::string>(),
                         .from = json.at("from").get<std::vector<std::string>>(),
                         .ranks_per_host = std::max(1, json.at("ranks_per_host").get<int>()),
                         .bytes_here = json.at("bytes_here").get<std::int64_t>()};
  } catch (const std::exception& error) {
    fail(ExitCode::config, kReplicas, " = ", value, ": ", error.what(),
         "; `octet launch --supervise` sets it, so unset it elsewhere");
  }
}

ReplicaClient::ReplicaClient(Options options) : options_(std::move(options)) {
  const int per_host = options_.places.ranks_per_host;
  const int mine = static_cast<int>(options_.claim.rank) / per_host;
  if (std::any_of(options_.ranks.begin(), options_.ranks.end(), [&](int rank) { return rank / per_host != mine; }))
    options_.places.to.clear();
}

ReplicaStream ReplicaClient::connect(const std::string& place) const {
  const auto [host, port] = host_and_port(place);
  return ReplicaStream(comm::join({.host = host,
                                   .port = port,
                                   .token = options_.token,
                                   .claim = options_.claim,
                                   .timeout_s = kConnectS,
                                   .server = "the supervisor"}));
}

void ReplicaClient::with(const std::string& place, std::string_view what, const std::function<void()>& work) const {
  try {
    work();
  } catch (const std::exception& error) {
    fail(ExitCode::data, "rank ", options_.claim.rank, " cannot ", what, " ", place, ": ", error.what());
  }
}

void ReplicaClient::keep(std::span<const std::byte> data, const Manifest& manifest, std::int64_t stays) {
  const std::string& place = options_.places.to;
  try {
    with(place, "send its snapshot to", [&] {
      if (!stream_) stream_.emplace(connect(place));
      stream_->send(topic::kKeep,
                    {{"rank", options_.claim.rank}, {"bytes", data.size()}, {"manifest", to_json(manifest)}, {"stays", stays}});
      stream_->answer(topic::kReady);
      stream_->send_bytes(data);
      stream_->answer(topic::kDone);
    });
  } catch (...) {
    stream_.reset();  // the next snapshot connects anew
    throw;
  }
}

void ReplicaClient::forget() {
  const std::string& place = options_.places.to;
  with(place, "take back its snapshots from", [&] {
    if (!stream_) stream_.emplace(connect(place));
    stream_->send(topic::kForget, nlohmann::json::object());
    stream_->answer(topic::kDone);
  });
}

std::vector<Replica> ReplicaClient::find(const std::string& timeline, bool only_likeliest,
                                         const std::function<void(std::string_view)>& on_warning) const {
  std::vector<Replica> found;
  for (const std::string& place : options_.places.from) {
    try {
      with(place, "ask for snapshots at", [&] {
        ReplicaStream stream = connect(place);
        stream.send(topic::kFind, {{"ranks", options_.ranks}, {"size", options_.claim.size}, {"timeline", timeline}});
        for (const nlohmann::json& replica : stream.answer(topic::kFound)) {
          found.push_back({.place = place,
                           .rank = replica.at("rank").get<int>(),
                           .bytes = replica.at("bytes").get<std::size_t>(),
                           .manifest = parse_manifest_part(replica.at("manifest").get<std::string>(), place)});
        }
      });
    } catch (const Error& error) {
      on_warning(error.what());
    }
    if (only_likeliest) break;
  }
  return found;
}

void ReplicaClient::fetch(const Replica& replica, SlotWriter& slot) const {
  with(replica.place, "read a snapshot from", [&] {
    ReplicaStream stream = connect(replica.place);
    Manifest manifest = replica.manifest;
    const SnapshotId id = id_of(manifest);
    stream.send(topic::kRead, {{"rank", replica.rank},
                               {"size", options_.claim.size},
                               {"timeline", manifest.meta.at("timeline")},
                               {"attempt", id.attempt},
                               {"step", id.step}});
    slot.empty();
    stream.receive_bytes({slot.make_room(replica.bytes), replica.bytes});
    manifest.meta["rank"] = options_.claim.rank;
    for (auto& [name, tensor] : manifest.tensors) {
      for (StoredSlice& slice : tensor.slices) slice.file = slot.data_file();
    }
    slot.publish(manifest);
  });
}

}  // namespace octet::checkpoint
