// Searches for the layout that trains a run fastest: predicts the speed of every layout that divides the run and fits into memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octet/nn/scope.h"
#include "octet/parallel/layout.h"
#include "octet/plan/step_model.h"

namespace octet::plan {

struct LayoutChoice {
  parallel::Mesh mesh;
  parallel::Weights weights = parallel::Weights::kept;
  parallel::Gradients gradients = parallel::Gradients::whole;
  nn::Checkpointing checkpointing = nn::Checkpointing::none;
  std::int64_t full_layers = -1;  // with Checkpointing::full: the number of layers that keep only their input; -1: all
  std::int64_t micro_batch = 1;
};

struct Found {
  LayoutChoice choice;
  std::size_t memory_bytes = 0;
  Step step;
};

struct Search {
  Cluster cluster;
  std::int64_t seq_len = 0, global_batch = 0;
  std::int64_t experts = 1;                          // experts of a layer; 1: no mixture of experts
  std::int64_t blocks = 1;                           // of the model: there are at most so many pipeline stages
  std::size_t memory_bytes = 0;                      // memory of a GPU
  std::function<bool(const LayoutChoice&)> divides;  // whether a run would accept the layout
  // The memory of a GPU, or a part of it that is more than memory_bytes.
  std::function<std::size_t(const LayoutChoice&)> memory_of;
  std::function<Step(const LayoutChoice&)> step_of;
  // Told how far the search is in each of its phases. `what` names what the phase counts: "meshes".
  std::function<void(const char* what, std::int64_t done, std::int64_t total)> progress = [](const char*, std::int64_t,
                                                                                             std::int64_t) {};
};

// The number of layouts that a search is asked to find.
inline constexpr std::size_t kWanted = 10;

// Returns the layouts, fastest first. The tensor and context axes stay within a node. The expert axis takes every size that
// divides both the experts and the shard axis. On the same mesh, a layout that keeps more in memory is faster, so the search
// takes the first choice of weights and gradients that fits, and tries activation checkpointing only if the best choice does not
// fit without it. If the best choice does not fit, it also tries gathered weights with whole gradients. A larger micro-batch
// takes more memory, so a choice that did not fit a smaller one is not tried again.
//
// The search tries pipelines last, because the bubble costs them time. It estimates the speed of each, and computes the memory
// only of those that may be among the kWanted fastest layouts. It does not find slower pipelines.
std::vector<Found> search_layouts(const Search& search);

// Describes the mesh: "shard 8 x context 4", or "one GPU".
std::string mesh_text(const parallel::Mesh& mesh);
// Describes the other choices: "weights kept, gradients whole, checkpointing none".
std::string keeps_text(const LayoutChoice& choice);

// Returns a sentence that compares the first layout with the fastest layout of another kind: one that uses other axes or keeps other
// things in memory.
std::string why_first(const std::vector<Found>& found);

}  // namespace octet::plan
