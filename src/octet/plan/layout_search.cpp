#include "octet/plan/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "octet/base/require.h"

namespace octet::plan {
namespace {

using nn::Checkpointing;
using parallel::Axis;
using parallel::Gradients;
using parallel::Mesh;
using parallel::Weights;

// The largest micro-batch of a GPU to try, in tokens. Products reach their full speed with far fewer.
constexpr std::int64_t kMostTokens = 65536;

std::vector<int> divisors(int size) {
  std::vector<int> result;
  for (int i = 1; i <= size; ++i) {
    if (size % i == 0) result.push_back(i);
  }
  return result;
}

// All meshes whose context x tensor groups stay within a node. Whether a mesh divides the run also depends on the micro-batch, so it is
// checked later.
std::vector<Mesh> meshes_of(const Cluster& cluster, std::int64_t experts) {
  std::vector<Mesh> meshes;
  for (const int tensor : divisors(cluster.per_node())) {
    for (const int context : divisors(cluster.per_node() / tensor)) {
      const int coordinates = cluster.gpus / (context * tensor);
      for (const int replicate : divisors(coordinates)) {
        const int shard = coordinates / replicate;
        for (const int expert : divisors(static_cast<int>(std::gcd(std::int64_t{shard}, experts)))) {
          meshes.emplace_back(std::array{replicate, shard, context, tensor}, expert);
        }
      }
    }
  }
  return meshes;
}

int parts_of(const Mesh& mesh) { return mesh.size({Axis::shard, Axis::context}); }

auto kept_order(const Search& search, const LayoutChoice& choice) {
  return parallel::kept_order(parts_of(choice.mesh), search.global_batch / (choice.micro_batch * choice.mesh.data_coordinates()));
}

// The first choice of weights and gradients that fits, in an order that keeps less and less.
std::optional<Found> first_that_fits(const Search& search, LayoutChoice choice) {
  for (const parallel::Kept& kept : kept_order(search, choice)) {
    choice.weights = kept.weights;
    choice.gradients = kept.gradients;
    const std::size_t bytes = search.memory_of(choice);
    if (bytes <= search.memory_bytes) return Found{choice, bytes, search.step_of(choice)};
    if (parts_of(choice.mesh) == 1) break;
  }
  return std::nullopt;
}

// Adds the layouts of a mesh and a micro-batch. Returns false if none fits.
bool add_micro_batch(const Search& search, const Mesh& mesh, std::int64_t micro_batch, std::vector<Found>& found) {
  bool any = false;
  for (const Checkpointing mode : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
    const auto fits = first_that_fits(search, {.mesh = mesh, .checkpointing = mode, .micro_batch = micro_batch});
    if (!fits) continue;
    found.push_back(*fits);
    any = true;
    if (parallel::Kept{fits->choice.weights, fits->choice.gradients} == kept_order(search, fits->choice).front()) break;
  }
  return any;
}

const char* name_of(Checkpointing mode) {
  return mode == Checkpointing::full ? "full" : mode == Checkpointing::selective ? "selective" : "none";
}

// Whether both layouts use the same axes, of any size, and keep the same weights, gradients and activations.
bool same_kind(const LayoutChoice& a, const LayoutChoice& b) {
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    if ((a.mesh.size(Axis(i)) > 1) != (b.mesh.size(Axis(i)) > 1)) return false;
  }
  if ((a.mesh.expert() > 1) != (b.mesh.expert() > 1)) return false;
  return a.weights == b.weights && a.gradients == b.gradients && a.checkpointing == b.checkpointing;
}

}  // namespace

std::vector<Found> search_layouts(const Search& search) {
  std::vector<Found> found;
  for (const Mesh& mesh : meshes_of(search.cluster, search.experts)) {
    const std::int64_t share = search.global_batch / mesh.data_coordinates();
    for (std::int64_t micro_batch = 1; micro_batch <= share; ++micro_batch) {
      if (micro_batch > 1 && micro_batch * search.seq_len / mesh.size(Axis::context) > kMostTokens) break;
      if (!search.divides({.mesh = mesh, .micro_batch = micro_batch})) continue;
      if (!add_micro_batch(search, mesh, micro_batch, found)) break;
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.step.tokens_per_s > b.step.tokens_per_s; });
  return found;
}

std::string mesh_text(const Mesh& mesh) {
  std::string text;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    const int size = mesh.size(Axis(i));
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", parallel::name_of(Axis(i)), size);
  }
  if (mesh.expert() > 1) text += fmt::format(", expert {}", mesh.expert());
  return text.empty() ? "one GPU" : text;
}

std::string keeps_text(const LayoutChoice& choice) {
  return fmt::format("weights {}, gradients {}, checkpointing {}", choice.weights == Weights::kept ? "kept" : "resharded",
                     choice.gradients == Gradients::whole ? "whole" : "sharded", name_of(choice.checkpointing));
}

std::string why_first(const std::vector<Found>& found) {
  require(!found.empty(), "plan: nothing was found");
  const Found& best = found.front();
  const auto other = std::find_if(found.begin(), found.end(), [&](const Found& f) { return !same_kind(f.choice, best.choice); });
  const std::string what = fmt::format("{} with {}", mesh_text(best.choice.mesh), keeps_text(best.choice));
  if (other == found.end()) return what + " is the only kind of layout that fits";
  struct Part {
    const char* name;
    double saved;
  };
  // Compares times per token, because the tokens of a step may differ.
  const auto saved = [&](double Step::*part) {
    return other->step.*part / (other->step.tokens_per_s * other->step.seconds) -
           best.step.*part / (best.step.tokens_per_s * best.step.seconds);
  };
  const Part parts[] = {{"products and attention", saved(&Step::compute_s)},
                        {"ops that memory bounds", saved(&Step::memory_s)},
                        {"exchanges that are not hidden", saved(&Step::exposed_s)}};
  const Part& most =
      *std::max_element(std::begin(parts), std::end(parts), [](const Part& a, const Part& b) { return a.saved < b.saved; });
  return fmt::format("{} is {:.1f}% faster than {} with {}, most of all because {} take {:.2f} us a token less", what,
                     100 * (best.step.tokens_per_s / other->step.tokens_per_s - 1), mesh_text(other->choice.mesh),
                     keeps_text(other->choice), most.name, 1e6 * most.saved);
}

}  // namespace octet::plan
