// A rank's side of replicas (replica_server.h): it sends each of its snapshots to one other host, and finds what a host lacks
// that has taken the place of a lost one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/checkpoint/replica_stream.h"
#include "octet/checkpoint/snapshot_slot.h"
#include "octet/comm/handshake.h"

namespace octet::checkpoint {

// What a supervisor tells its ranks about the other hosts, in OCTET_REPLICAS. A place is "HOST:PORT".
struct ReplicaPlaces {
  std::string to;                 // keeps the snapshots of this host's ranks; "": none does
  std::vector<std::string> from;  // may have snapshots, the likeliest first
  int ranks_per_host = 1;         // ranks 0 to ranks_per_host-1 run on one host, and so on
  std::int64_t bytes_here = 0;    // of memory, which this host's supervisor already holds for ranks of others

  // "OCTET_REPLICAS=...", for the environment of a rank.
  std::string variable() const;
};
// Returns nothing without a supervisor, or if the run has no replicas. Throws Error{config} if the variable is not one.
std::optional<ReplicaPlaces> inherited_replica_places();

// A snapshot on another host.
struct Replica {
  std::string place;
  int rank = 0;  // that took it
  std::size_t bytes = 0;
  Manifest manifest;
};

// Calls throw Error{data} "rank 3 cannot send its snapshot to HOST:PORT: REASON", because a run can do without replicas. Only one
// thread may use a client at a time.
class ReplicaClient {
 public:
  struct Options {
    ReplicaPlaces places;
    comm::Token token;
    comm::Claim claim;
    std::vector<int> ranks;  // that hold the same state as this one, which is one of them
  };
  explicit ReplicaClient(Options options);

  // Whether snapshots are sent: not if another host runs a rank that holds the same state.
  bool keeps() const { return !options_.places.to.empty(); }
  // Sends a snapshot that is complete, and waits until it is kept. The other host has room for two. Of those before, the one of
  // step `stays` stays there, if it is there.
  void keep(std::span<const std::byte> data, const Manifest& manifest, std::int64_t stays);
  // Lets the other host forget what this rank has sent.
  void forget();

  // The snapshots of this rank's state on `timeline` that other hosts have. If `only_likeliest`, asks only the first of them.
  // on_warning gets a line about each host that could not be asked.
  std::vector<Replica> find(const std::string& timeline, bool only_likeliest,
                            const std::function<void(std::string_view)>& on_warning) const;
  // Copies a snapshot into a slot, as one of this rank.
  void fetch(const Replica& replica, SlotWriter& slot) const;

 private:
  ReplicaStream connect(const std::string& place) const;
  void with(const std::string& place, std::string_view what, const std::function<void()>& work) const;

  Options options_;
  std::optional<ReplicaStream> stream_;  // to places.to
};

}  // namespace octet::checkpoint
