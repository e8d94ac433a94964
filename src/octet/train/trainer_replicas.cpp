// What a run does when ranks that must hold the same state do not.
#include <fmt/format.h>

#include <algorithm>

#include "octet/train/trainer.h"

namespace octet::train {
namespace {

// "rank 0 (node0), rank 1 (node0) and 6 more".
std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  const std::size_t shown = std::min(names.size(), kMost);
  const auto first = names.begin(), last = first + static_cast<std::ptrdiff_t>(shown);
  if (names.size() > kMost) return fmt::format("{} and {} more", fmt::join(first, last, ", "), names.size() - kMost);
  return fmt::format("{}", fmt::join(first, last, shown == 2 ? " and " : ", "));
}

// `names` are those of disagreement.ranks.
std::string sentence_of(const Disagreement& disagreement, const std::vector<std::string>& names) {
  std::vector<std::string> wrong, others;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool blamed = std::count(disagreement.wrong.begin(), disagreement.wrong.end(), disagreement.ranks[i]) > 0;
    (blamed ? wrong : others).push_back(names[i]);
  }
  const char* const axis = parallel::name_of(disagreement.axis);
  if (wrong.empty()) {
    return concat(list_of(others), " hold different bits of ", disagreement.tensor, ", which must be equal along ", axis,
                  "; no majority tells which of them is wrong");
  }
  return concat(list_of(wrong), wrong.size() == 1 ? " holds" : " hold", " other bits of ", disagreement.tensor, " than ",
                list_of(others), ", which agree; all must be equal along ", axis);
}

}  // namespace

void Trainer::compare_replicas() {
  const parallel::Mesh& mesh = world_.mesh();
  if (config_.health.replicas_every == 0 || mesh.size({parallel::Axis::replicate, parallel::Axis::tensor}) == 1) return;
  const std::optional<Disagreement> found = engine_->compare_replicas();
  if (engine_->mean_over_ranks(found ? 1 : 0) == 0) return;

  drop_snapshots();  // the last ones may have the wrong bits
  // Few ranks know the fault, and all end with it.
  const auto key_of = [](int rank) { return concat("name of rank ", rank); };
  world_.tell(key_of(world_.rank()), world_.name());
  if (found) {
    std::vector<std::string> names;
    for (const int rank : found->ranks) names.push_back(world_.hear(key_of(rank)));
    world_.tell("disagreement", sentence_of(*found, names));
  }
  const std::string sentence = world_.hear("disagreement");
  world_.barrier("told");  // the rendezvous ends with rank 0
  const bool is_wrong = found && std::count(found->wrong.begin(), found->wrong.end(), world_.rank()) > 0;
  fail(is_wrong ? ExitCode::unfit : ExitCode::peer, "step ", step_, ": ", sentence,
       ". Nothing of this state is saved. The ranks agreed when the checkpoints in ",
       (std::filesystem::path(config_.run.output_dir) / "checkpoints").string(), " were saved", how_to_go_on());
}

}  // namespace octet::train
