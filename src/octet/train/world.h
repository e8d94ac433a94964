// This process among the ranks of a run: its place on the mesh, its device and its groups.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "octet/checkpoint/ranks.h"
#include "octet/comm/environment.h"
#include "octet/comm/links.h"
#include "octet/comm/rendezvous.h"
#include "octet/parallel/groups.h"
#include "octet/train/config.h"

namespace octet::train {

// Returns the mesh of [parallel] for `ranks` ranks. The configuration must have been checked for this number of ranks. Throws
// Error{config} if the tensor axis does not divide the model, or the expert axis does not divide its experts.
parallel::Mesh mesh_of(const Config& config, int ranks);

// Returns the number of this rank's GPU. It is the local rank, or 0 if the launcher (Slurm, MPI) makes only one GPU visible to each rank.
int gpu_of(const comm::RankEnvironment& where);

class World {
 public:
  // Meets the other ranks, if there are any, and makes the device and the groups. Throws Error{peer} if a rank does not arrive, or has
  // another token, version, commit or configuration, and Error{config} as meeting_options().
  World(const comm::RankEnvironment& where, const Config& config);

  int rank() const { return rank_; }
  int size() const { return mesh_.ranks(); }
  // Whether this is rank 0, which alone writes common files and prints to the console.
  bool is_first() const { return rank_ == 0; }
  // "rank 3 (node1 GPU 3)", or "rank 3 (node1)" without a GPU.
  const std::string& name() const { return name_; }
  // The number of the GPU on this machine that the rank computes on; -1 without one.
  int gpu() const { return gpu_; }
  const parallel::Mesh& mesh() const { return mesh_; }
  // The device that this rank computes on. Each rank has its own GPU.
  Device& device() { return *device_; }
  const parallel::Groups& groups() const { return groups_; }
  // Returns ranks with a new key prefix, for one checkpoint::Writer or one opening of checkpoints. All ranks must call it in the same
  // order.
  checkpoint::Ranks checkpoint_ranks();

  // Returns when all ranks have called it with this name.
  void barrier(const std::string& name);
  // Returns rank 0's value on every rank. Waits up to an hour, because rank 0 may read large files first. Throws Error{peer} if a rank is
  // lost.
  std::string from_first(const std::string& what, const std::string& value);
  // Does the same for an answer, yes or no.
  bool first_says(const std::string& what, bool answer) { return from_first(what, answer ? "yes" : "no") == "yes"; }
  // Returns when rank 0 has called it, however long rank 0 takes. Throws Error{peer} if a rank is lost.
  void wait_for_first(const std::string& what);
  // Throws Error{peer} unless all ranks call it with the same value.
  void agree(const std::string& what, const std::string& value);
  // Publishes a value that any rank can read. Several ranks may publish the same `what`; the last one counts. The value is
  // removed when it has been read `times` times; 0: it stays.
  void publish(const std::string& what, const std::string& value, int times = 0);
  // Waits until a rank has published it, and returns the value. Throws Error{peer} if a rank is lost.
  std::string read(const std::string& what);
  // Sets the number of finished steps. Errors about lost ranks name the step after it.
  void at_step(std::int64_t step) { step_ = step; }

 private:
  // Returns Links::broken() as a sentence. Shows the first broken link on the rank's page, from which a supervisor reads it.
  std::string broken_links(const std::vector<int>& ranks) const;
  // As Rendezvous::lost_text, with the stages of the ranks that it names: "rank 5 (stage 1) closed its connection".
  std::string lost_text(double wait_s = 0) const;

  int rank_ = 0;
  parallel::Mesh mesh_;
  std::string name_;
  int gpu_ = -1;
  std::atomic<std::int64_t> step_ = 0;
  std::unique_ptr<comm::Rendezvous> rendezvous_;
  std::optional<comm::Links> links_;
  std::unique_ptr<Device> device_;
  int checkpoint_uses_ = 0;
  parallel::Groups groups_;
};

}  // namespace octet::train
