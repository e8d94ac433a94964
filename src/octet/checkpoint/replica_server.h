// A host's supervisor keeps replicas of the snapshots that ranks of another host take, so that a run that has lost a host
// continues from memory. One thread admits processes that know the token of the job, and each connected rank is served by its
// own thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "octet/checkpoint/replica_stream.h"
#include "octet/checkpoint/snapshot_memory.h"
#include "octet/comm/doorkeeper.h"

namespace octet::checkpoint {

class ReplicaServer {
 public:
  struct Options {
    std::string host;  // where it listens, at a free port
    comm::Token token;
    std::string version;    // must be the same on all ranks
    std::string name = "";  // of this host, in messages
  };
  // Listens. Throws Error{peer} "NAME cannot listen at ...".
  explicit ReplicaServer(Options options);
  ~ReplicaServer();  // interrupts what it serves
  ReplicaServer(const ReplicaServer&) = delete;
  ReplicaServer& operator=(const ReplicaServer&) = delete;

  int port() const { return port_; }
  // The memory that the replicas take.
  std::int64_t bytes() const;
  // Lets ranks of other hosts also read the snapshots of this host's ranks in `memory`.
  void offer(std::shared_ptr<const SnapshotMemory> memory);

 private:
  // The replicas of a rank. A new one overwrites the oldest, except the one that the rank says must stay.
  struct Kept {
    SnapshotMemory memory{1, Heirs::none};
    std::vector<SlotWriter> slots;
    std::vector<std::int64_t> steps;  // what each slot holds; -1: nothing
    std::string timeline;             // of these steps
    std::int64_t attempt = 0;         // that sent the newest one
    bool receives = false;
  };
  struct Session {
    explicit Session(comm::Connection connection) : stream(std::move(connection)) {}
    ReplicaStream stream;
    std::thread thread;
    bool done = false;
  };
  struct Found {
    SnapshotSlot slot;
    Manifest manifest;
    std::shared_ptr<const void> owner;  // keeps the slot open
  };

  void run();
  void enter(comm::Guest&& guest);
  void serve(int rank, ReplicaStream& stream);
  void handle(int rank, ReplicaStream& stream, const ReplicaMessage& message);
  void keep(ReplicaStream& stream, int rank, std::size_t bytes, Manifest manifest, std::int64_t stays);
  void forget(int rank);
  // Drops replicas that nobody can need any more. They are left from ranks that now send to another host. The replicas of
  // another rank can be dropped if their steps are all older than those of `kept`: a rank keeps its two newest snapshots, so
  // the rank of `kept` no longer has such an old step, and no state of that step is complete. Replicas of another timeline can
  // also be dropped if they come from an earlier attempt than `kept`, because the run has left that timeline. The caller holds
  // the mutex.
  void give_back_outdated_by(const Kept& kept);
  std::vector<Found> all() const;

  const Options options_;
  int port_ = 0;
  comm::Wakeup wake_;
  comm::Doorkeeper door_;
  mutable std::mutex mutex_;
  bool stop_ = false;
  std::shared_ptr<const SnapshotMemory> own_;
  std::map<int, std::shared_ptr<Kept>> kept_;         // by rank; their steps change under the mutex
  std::map<int, std::unique_ptr<Session>> sessions_;  // by rank; the thread of run() alone changes the map
  std::thread thread_;
};

}  // namespace octet::checkpoint
