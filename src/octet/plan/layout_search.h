// Which layout trains a run fastest: all that divide, those that fit, by their predicted speed.
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
  std::int64_t experts = 1;                          // of a layer; 1: none to share out
  std::size_t memory_bytes = 0;                      // that a GPU has for all of it
  std::function<bool(const LayoutChoice&)> divides;  // whether the run itself would take it
  std::function<std::size_t(const LayoutChoice&)> memory_of;
  std::function<Step(const LayoutChoice&)> step_of;
};

// Best first. Layers and sequences are cut within a node alone; experts are shared out over all that divides them and the shards.
// What keeps more is faster on the same mesh, so of weights and gradients the first choice that fits is taken, and activations
// are computed again only where something does not fit.
std::vector<Found> search_layouts(const Search& search);

// "shard 8 x context 4"; "one GPU".
std::string mesh_text(const parallel::Mesh& mesh);
// The rest: "weights kept, gradients whole, checkpointing none".
std::string keeps_text(const LayoutChoice& choice);

// In a sentence, why the first is better than the best of another kind: on other axes, or keeping something else.
std::string why_first(const std::vector<Found>& found);

}  // namespace octet::plan
