// A rank's side of replicas (replica_server.h). It sends each of its snapshots to one other host. On a host that replaces a
// lost one, it finds the snapshots that the host lacks.
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

// A supervisor tells its ranks about the other hosts with this structure, in OCTET_REPLICAS. A place is "HOST:PORT".
struct ReplicaPlaces {
  std::string to;                 // the host that keeps the snapshots of this host's ranks; "": none
  std::vector<std::string> from;  // the hosts that may have snapshots, the likeliest first
  int ranks_per_host = 1;         // ranks 0 to ranks_per_host-1 run on one host, and so on
  std::int64_t bytes_here = 0;    // memory that this host's supervisor already holds for ranks of other hosts

  // "OCTET_REPLICAS=...", for the environment of a rank.
  std::string variable() const;
};
// Returns nothing without a supervisor, or if the run has no replicas. Throws Error{config} if the variable cannot be parsed.
std::optional<ReplicaPlaces> inherited_replica_places();

// A snapshot that another host holds.
struct Replica {
  std::string place;
  int rank = 0;  // that took it
  std::size_t bytes = 0;
  Manifest manifest;
};

// Calls throw Error{data} "rank 3 cannot send its snapshot to HOST:PORT: REASON", not another code, because a run can continue
// without replicas. Only one thread may use a client at a time.
class ReplicaClient {
 public:
  struct Options {
    ReplicaPlaces places;
    comm::Token token;
    comm::Claim claim;
    std::vector<int> ranks;  // the ranks that hold the same state as this rank, including this rank
  };
  explicit ReplicaClient(Options options);

  // Whether snapshots are sent. They are not if another host runs a rank that holds the same state.
  bool keeps() const { return !options_.places.to.empty(); }
  // Sends a complete snapshot, and waits until the other host keeps it. That host has room for two snapshots. If it has the
  // snapshot of step `stays`, it does not overwrite that one.
  void keep(std::span<const std::byte> data, const Manifest& manifest, std::int64_t stays);
  // Tells the other host to drop what this rank has sent.
  void forget();

  // Returns the snapshots of this rank's state on `timeline` that other hosts have. If `only_likeliest`, asks only the first
  // host. Calls on_warning with a line about each host that could not be asked.
  std::vector<Replica> find(const std::string& timeline, bool only_likeliest,
                            const std::function<void(std::string_view)>& on_warning) const;
  // Copies a snapshot into a slot, as if this rank had taken it.
  void fetch(const Replica& replica, SlotWriter& slot) const;

 private:
  ReplicaStream connect(const std::string& place) const;
  void with(const std::string& place, std::string_view what, const std::function<void()>& work) const;

  Options options_;
  std::optional<ReplicaStream> stream_;  // to places.to
};

}  // namespace octet::checkpoint
