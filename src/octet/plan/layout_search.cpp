#include "octet/plan/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "octet/base/require.h"
#include "octet/plan/pipeline_time.h"

namespace octet::plan {
namespace {

using nn::Checkpointing;
using parallel::Axis;
using parallel::Gradients;
using parallel::Mesh;
using parallel::Stages;
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

// All meshes with these stages whose context x tensor groups stay within a node. Whether a mesh divides the run also depends on
// the micro-batch, so it is checked later. Stages cut parameters already, so with them the sizes of the replicate axis differ
// little: the search takes the one that keeps least, and the one whose shards stay within a node.
std::vector<Mesh> meshes_of(const Search& search, Stages stages) {
  std::vector<Mesh> meshes;
  const int per_node = search.cluster.per_node();
  for (const int tensor : divisors(per_node)) {
    for (const int context : divisors(per_node / tensor)) {
      if (search.cluster.gpus % (context * tensor * stages.count) != 0) continue;
      const int coordinates = search.cluster.gpus / (context * tensor * stages.count);
      for (const int replicate : divisors(coordinates)) {
        const int shard = coordinates / replicate;
        if (stages.count > 1 && replicate > 1 && shard * context * tensor != per_node) continue;
        for (const int expert : divisors(static_cast<int>(std::gcd(std::int64_t{shard}, search.experts)))) {
          meshes.emplace_back(std::array{replicate, shard, context, tensor}, expert, stages);
        }
      }
    }
  }
  return meshes;
}

int parts_of(const Mesh& mesh) { return mesh.size({Axis::shard, Axis::context}); }

std::int64_t micro_batches_of(const Search& search, const LayoutChoice& choice) {
  return search.global_batch / (choice.micro_batch * choice.mesh.data_coordinates());
}

auto kept_order(const Search& search, const LayoutChoice& choice) {
  return parallel::kept_order(parts_of(choice.mesh), micro_batches_of(search, choice));
}

// Whether a search tries the last choice, gathered weights with whole gradients, wherever the first one does not fit: with
// several micro-batches it exchanges gradients less often than the choices between the two. With one, it is the slowest.
template <std::size_t N>
bool last_may_be_faster(const std::array<parallel::Kept, N>& order) {
  return order.front() == parallel::Kept{Weights::kept, Gradients::whole};
}

// The choices that did not fit on a mesh with a smaller micro-batch.
using TooLarge = std::set<std::tuple<Checkpointing, Weights, Gradients>>;

// The first choice of weights and gradients that fits, in an order that keeps less and less, and the last one if it may be
// faster.
std::vector<Found> first_that_fits(const Search& search, LayoutChoice choice, TooLarge& too_large) {
  std::vector<Found> found;
  const auto order = kept_order(search, choice);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool last = i + 1 == order.size();
    if (!found.empty() && !(last && last_may_be_faster(order))) continue;
    choice.weights = order[i].weights;
    choice.gradients = order[i].gradients;
    const std::tuple what(choice.checkpointing, choice.weights, choice.gradients);
    if (!too_large.contains(what)) {
      const std::size_t bytes = search.memory_of(choice);
      if (bytes <= search.memory_bytes) {
        found.push_back({choice, bytes, search.step_of(choice)});
      } else {
        too_large.insert(what);
      }
    }
    if (parts_of(choice.mesh) == 1 || (i == 0 && !found.empty())) break;
  }
  return found;
}

// Adds the layouts of a mesh and a micro-batch. Returns false if none fits.
bool add_micro_batch(const Search& search, const Mesh& mesh, std::int64_t micro_batch, TooLarge& too_large,
                     std::vector<Found>& found) {
  bool any = false;
  for (const Checkpointing mode : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
    const std::vector<Found> fits =
        first_that_fits(search, {.mesh = mesh, .checkpointing = mode, .micro_batch = micro_batch}, too_large);
    if (fits.empty()) continue;
    found.insert(found.end(), fits.begin(), fits.end());
    any = true;
    const LayoutChoice& first = fits.front().choice;
    if (parallel::Kept{first.weights, first.gradients} == kept_order(search, first).front()) break;
  }
  return any;
}

const char* name_of(Checkpointing mode) {
  return mode == Checkpointing::full ? "full" : mode == Checkpointing::selective ? "selective" : "none";
}

// Adds layouts with stages to those that were found without. The search always tries the fastest candidate next. If it does
// not fit, candidates that keep less replace it. So the search measures memory, which takes long, only for layouts that may be
// wanted.
class Pipelines {
 public:
  Pipelines(const Search& search, std::vector<Found>& found) : search_(search), found_(found) {}

  void add() {
    std::vector<Mesh> meshes;
    for (const int stages : divisors(search_.cluster.gpus)) {
      if (stages == 1 || stages > search_.blocks) continue;
      const std::vector<Mesh> some = meshes_of(search_, {.count = stages});
      meshes.insert(meshes.end(), some.begin(), some.end());
    }
    std::int64_t done = 0;
    for (const Mesh& mesh : meshes) {
      const std::int64_t share = search_.global_batch / mesh.data_coordinates();
      for (std::int64_t micro_batch = 1; micro_batch <= share; ++micro_batch) {
        if (micro_batch > 1 && micro_batch * search_.seq_len / mesh.size(Axis::context) > kMostTokensOfStage) break;
        if (share % micro_batch == 0) push_chunks({.mesh = mesh, .micro_batch = micro_batch});
      }
      search_.progress("meshes with stages", ++done, static_cast<std::int64_t>(meshes.size()));
    }
    for (std::int64_t tried = 1; !candidates_.empty(); ++tried) {
      const Candidate next = candidates_.top();
      candidates_.pop();
      if (next.step.tokens_per_s <= slowest_wanted()) return;
      try_out(next);
      // This is an upper bound: the search ends at the first one that is too slow.
      search_.progress("layouts with stages", tried, tried + static_cast<std::int64_t>(candidates_.size()));
    }
  }

 private:
  // Products are fast with so many tokens, and larger micro-batches are fewer, which makes the bubble longer.
  static constexpr std::int64_t kMostTokensOfStage = kMostTokens / 4;
  // More chunks are tried while the bubble is a larger share of the work than this. They cost messages and memory.
  static constexpr double kShortBubble = 0.02;
  // The share of the computation that full activation checkpointing does twice: one of the three passes, added to them.
  static constexpr double kRecomputed = 0.25;

  struct Candidate {
    LayoutChoice choice;
    std::size_t kept;  // the place of its weights and gradients in kept_order()
    Step step;
    bool operator<(const Candidate& other) const { return step.tokens_per_s < other.step.tokens_per_s; }
  };

  void push_chunks(LayoutChoice choice) {
    const Mesh mesh = choice.mesh;
    for (int chunks = 1; chunks <= search_.blocks / mesh.stages().count; ++chunks) {
      choice.mesh = mesh.with({.count = mesh.stages().count, .chunks = chunks});
      if (!search_.divides(choice)) continue;
      const double bubble = ideal_bubble(choice.mesh.stages(), micro_batches_of(search_, choice));
      if (most_tokens_per_s() / (1 + bubble) > slowest_wanted()) push(choice, 0);
      if (bubble < kShortBubble) break;
    }
  }

  void push(LayoutChoice choice, std::size_t kept) {
    const auto order = kept_order(search_, choice);
    if (kept >= (parts_of(choice.mesh) > 1 ? order.size() : 1)) return;
    choice.weights = order[kept].weights;
    choice.gradients = order[kept].gradients;
    const Step step = search_.step_of(choice);
    if (step.tokens_per_s > slowest_wanted()) candidates_.push({choice, kept, step});
    if (kept == 1 && last_may_be_faster(order)) push(choice, order.size() - 1);
  }

  void try_out(const Candidate& candidate) {
    LayoutChoice choice = candidate.choice;
    const bool first = candidate.kept == 0;
    const std::size_t bytes = search_.memory_of(choice);
    if (bytes <= search_.memory_bytes) return found_.push_back({choice, bytes, candidate.step});
    if (first && choice.checkpointing == Checkpointing::none && search_.memory_of(least_of(choice)) > search_.memory_bytes)
      return;
    const auto order = kept_order(search_, choice);
    const bool last_was_tried = last_may_be_faster(order) && candidate.kept + 2 == order.size();
    if (!last_was_tried) push(choice, candidate.kept + 1);
    if (!first || choice.checkpointing == Checkpointing::full) return;
    choice.checkpointing = choice.checkpointing == Checkpointing::none ? Checkpointing::selective : Checkpointing::full;
    push(choice, 0);
  }
  static LayoutChoice least_of(LayoutChoice choice) {
    choice.weights = Weights::resharded;
    choice.gradients = Gradients::sharded;
    choice.checkpointing = Checkpointing::full;
    return choice;
  }

  // The speed that a layout must exceed, if enough others were found.
  double slowest_wanted() const {
    if (found_.size() < kWanted) return 0;
    std::vector<double> speeds;
    for (const Found& f : found_) speeds.push_back(f.step.tokens_per_s);
    const auto last = speeds.begin() + kWanted - 1;
    std::nth_element(speeds.begin(), last, speeds.end(), std::greater<>());
    return *last;
  }

  // No stage is faster than the computation alone was in any layout without stages, less what that layout recomputed.
  double most_tokens_per_s() const {
    double most = found_.empty() ? std::numeric_limits<double>::infinity() : 0;
    for (const Found& f : found_) {
      const double busy = f.step.compute_s + f.step.memory_s;
      const double once = f.choice.checkpointing == Checkpointing::full ? (1 - kRecomputed) * busy : busy;
      most = std::max(most, f.step.tokens_per_s * f.step.seconds / once);
    }
    return most;
  }

  const Search& search_;
  std::vector<Found>& found_;
  std::priority_queue<Candidate> candidates_;
};

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
  const std::vector<Mesh> meshes = meshes_of(search, {});
  std::int64_t done = 0;
  for (const Mesh& mesh : meshes) {
    const std::int64_t share = search.global_batch / mesh.data_coordinates();
    TooLarge too_large;
    for (std::int64_t micro_batch = 1; micro_batch <= share; ++micro_batch) {
      if (micro_batch > 1 && micro_batch * search.seq_len / mesh.size(Axis::context) > kMostTokens) break;
      if (!search.divides({.mesh = mesh, .micro_batch = micro_batch})) continue;
      if (!add_micro_batch(search, mesh, micro_batch, too_large, found)) break;
    }
    search.progress("meshes", ++done, static_cast<std::int64_t>(meshes.size()));
  }
  Pipelines(search, found).add();
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
  if (mesh.stages().chunks > 1) text += fmt::format(", {} chunks a stage", mesh.stages().chunks);
  if (mesh.expert() > 1) text += fmt::format(", expert {}", mesh.expert());
  return text.empty() ? "one GPU" : text;
}

std::string keeps_text(const LayoutChoice& choice) {
  return fmt::format("weights {}, gradients {}, checkpointing {}{}", choice.weights == Weights::kept ? "kept" : "resharded",
                     choice.gradients == Gradients::whole ? "whole" : "sharded", name_of(choice.checkpointing),
                     choice.full_layers < 0 ? "" : fmt::format(" in {} layers", choice.full_layers));
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
                        {"memory-bound ops", saved(&Step::memory_s)},
                        {"exchanges that are not hidden", saved(&Step::exposed_s)},
                        {"waits for optimizer states", saved(&Step::copies_s)},
                        {"bubbles", saved(&Step::bubble_s)}};
  const Part& most =
      *std::max_element(std::begin(parts), std::end(parts), [](const Part& a, const Part& b) { return a.saved < b.saved; });
  return fmt::format("{} is {:.1f}% faster than {} with {}, mainly because {} take {:.2f} us less per token", what,
                     100 * (best.step.tokens_per_s / other->step.tokens_per_s - 1), mesh_text(other->choice.mesh),
                     keeps_text(other->choice), most.name, 1e6 * most.saved);
}

}  // namespace octet::plan
