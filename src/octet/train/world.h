// This process among the ranks of a run: its place on the mesh and its groups.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "octet/checkpoint/ranks.h"
#include "octet/comm/environment.h"
#include "octet/comm/rendezvous.h"
#include "octet/parallel/groups.h"
#include "octet/train/config.h"

namespace octet::train {

// The mesh that [parallel] asks for with so many ranks. The configuration has been checked for them. Throws Error{config} where
// the tensor axis cannot cut the model, or its experts cannot be shared out.
parallel::Mesh mesh_of(const Config& config, int ranks);

// The GPU of this rank: each of a host's ranks has its own, unless its launcher (Slurm, MPI) shows each of them one alone.
int gpu_of(const comm::RankEnvironment& where);

class World {
 public:
  // Meets the other ranks, if any. Throws Error{peer} when one does not come, or runs another version or configuration.
  World(const comm::RankEnvironment& where, const Config& config);

  int rank() const { return rank_; }
  int size() const { return mesh_.ranks(); }
  // Rank 0 alone writes files and speaks.
  bool is_first() const { return rank_ == 0; }
  const parallel::Mesh& mesh() const { return mesh_; }
  // What this rank computes on: a GPU of its own.
  Device& device() { return *device_; }
  const parallel::Groups& groups() const { return groups_; }
  // For a checkpoint's writer or one opening of it: all ranks ask for them in the same order.
  checkpoint::Ranks checkpoint_ranks();

  // Returns when all ranks have come.
  void barrier(const std::string& name);
  // What rank 0 says, which may have to read files first. Who dies is noticed meanwhile.
  std::string from_first(const std::string& what, const std::string& value);
  // Throws Error{peer} unless all ranks say the same.
  void agree(const std::string& what, const std::string& value);
  // What an error is to name.
  void at_step(std::int64_t step) { step_ = step; }

 private:
  int rank_ = 0;
  parallel::Mesh mesh_;
  std::atomic<std::int64_t> step_ = 0;
  std::unique_ptr<comm::Rendezvous> rendezvous_;
  std::unique_ptr<Device> device_;
  int checkpoint_uses_ = 0;
  parallel::Groups groups_;
};

}  // namespace octet::train
