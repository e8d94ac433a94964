// What a run does when ranks hold or compute bits that differ from those they must have.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "octet/base/checksum.h"
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

bool contains(const std::vector<int>& ranks, int rank) { return std::count(ranks.begin(), ranks.end(), rank) > 0; }

// The names of ranks in two lists: those of the ranks in `wrong`, and the others.
struct Parted {
  Parted(const std::vector<int>& ranks, const std::vector<int>& wrong_ranks, const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < names.size(); ++i) (contains(wrong_ranks, ranks[i]) ? wrong : others).push_back(names[i]);
  }
  std::vector<std::string> wrong, others;
};

// Says who disagrees. `names` are the names of disagreement.ranks, in the same order.
std::string sentence_of(const Disagreement& disagreement, const std::vector<std::string>& names) {
  const auto [wrong, others] = Parted(disagreement.ranks, disagreement.wrong, names);
  const char* const axis = parallel::name_of(disagreement.axis);
  if (wrong.empty()) {
    return concat(list_of(others), " hold different bits of ", disagreement.tensor, ", which must be equal along ", axis,
                  "; no majority tells which of them is wrong");
  }
  return concat(list_of(wrong), wrong.size() == 1 ? " holds" : " hold", " other bits of ", disagreement.tensor, " than ",
                list_of(others), ", which agree; all must be equal along ", axis);
}

using Sums = std::vector<std::uint64_t>;

// What the ranks of a group have computed from the same micro-batch, twice. The ranks differ only in their data coordinate.
struct Computed {
  std::vector<int> ranks;          // of this rank's group
  std::vector<Sums> first, again;  // of each of them

  std::vector<std::uint64_t> hashes() const {
    std::vector<std::uint64_t> result;
    for (const Sums& sums : first) result.push_back(checksum(std::as_bytes(std::span(sums))));
    return result;
  }
  // The ranks that the majority outvotes. Without a majority, the ranks whose two results differ, or none if that is true of
  // all.
  std::vector<int> wrong() const {
    std::vector<int> found = minority(hashes(), ranks);
    if (!found.empty()) return found;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (first[i] != again[i]) found.push_back(ranks[i]);
    }
    return found.size() == ranks.size() ? std::vector<int>{} : found;
  }
  bool repeat_themselves(const std::vector<int>& some) const {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (contains(some, ranks[i]) && first[i] != again[i]) return false;
    }
    return true;
  }
  // The index of the first sum for which ranks have computed different values, in the order of the computation.
  std::size_t first_difference() const {
    std::size_t number = first[0].size();
    for (const Sums& sums : first) {
      const auto at = std::mismatch(sums.begin(), sums.end(), first[0].begin()).first;
      number = std::min(number, static_cast<std::size_t>(at - sums.begin()));
    }
    return number;
  }
  std::string sentence(const std::string& tensor, const std::vector<std::string>& names) const {
    const auto [bad, others] = Parted(ranks, wrong(), names);
    const bool same = repeat_themselves(bad.empty() ? ranks : wrong());
    if (bad.empty()) {
      return concat(list_of(others), " compute different bits of ", tensor, " from the same micro-batch", same ? ", twice" : "",
                    "; no majority tells which of them is wrong");
    }
    return concat(list_of(bad), bad.size() == 1 ? " computes" : " compute", " other bits of ", tensor, " than ", list_of(others),
                  " from the same micro-batch, ", same ? "and the same wrong ones again" : "and again others the second time");
  }
};

}  // namespace

void Trainer::compare_replicas() {
  const parallel::Mesh& mesh = world_.mesh();
  if (config_.health.replicas_every == 0 || mesh.size({parallel::Axis::replicate, parallel::Axis::tensor}) == 1) return;
  const std::optional<Disagreement> found = engine_->compare_replicas();
  if (engine_->mean_over_ranks(found ? 1 : 0) == 0) return;
  if (!found) end_with_wrong_bits(false, {}, {});
  end_with_wrong_bits(contains(found->wrong, world_.rank()), found->ranks,
                      [&](const std::vector<std::string>& names) { return sentence_of(*found, names); });
}

// The ranks with other data coordinates hold the same weights, so all compute the micro-batch of coordinate 0 that comes next.
void Trainer::compare_products() {
  const parallel::Mesh& mesh = world_.mesh();
  if (config_.health.sdc_every == 0 || mesh.data_coordinates() == 1) return;
  common_loader_->seek(loader_->position());
  const data::Batch batch = common_loader_->next();
  const Sums first = engine_->fingerprint(batch);
  // Halves of the hash, because ranks exchange numbers in F64.
  const std::uint64_t hash = checksum(std::as_bytes(std::span(first)));
  const std::vector<double> high = engine_->of_all_ranks(static_cast<double>(hash >> 32)),
                            low = engine_->of_all_ranks(static_cast<double>(hash & 0xffffffffu));
  const auto group_of = [&](int rank) { return mesh.group({parallel::Axis::replicate, parallel::Axis::shard}, rank); };
  const auto differs = [&](const std::vector<int>& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
      const auto at = static_cast<std::size_t>(rank), of_first = static_cast<std::size_t>(ranks[0]);
      return high[at] != high[of_first] || low[at] != low[of_first];
    });
  };
  bool any = false;
  for (int rank = 0; rank < mesh.ranks(); ++rank) any = any || differs(group_of(rank));
  if (!any) return;

  const auto key_of = [](int rank) { return concat("sums of rank ", rank); };
  world_.publish(key_of(world_.rank()), nlohmann::json({first, engine_->fingerprint(batch)}).dump());
  Computed computed{.ranks = group_of(world_.rank()), .first = {}, .again = {}};
  if (!differs(computed.ranks)) end_with_wrong_bits(false, {}, {});
  for (const int rank : computed.ranks) {
    const nlohmann::json sums = parse_json(world_.read(key_of(rank)), key_of(rank));
    computed.first.push_back(sums.at(0).get<Sums>());
    computed.again.push_back(sums.at(1).get<Sums>());
  }
  // Ranks that share a micro-batch also share the fault of one of them, so then nobody is to blame.
  const bool alone = mesh.ranks() == mesh.data_coordinates();
  const std::string tensor = engine_->names_in_fingerprint().at(computed.first_difference());
  end_with_wrong_bits(
      alone && contains(computed.wrong(), world_.rank()), computed.ranks, [&](const std::vector<std::string>& names) {
        return concat(computed.sentence(tensor, names),
                      alone ? "" : "; the fault may also lie on a rank that computes other parts of the same micro-batches");
      });
}

void Trainer::end_with_wrong_bits(bool blamed, const std::vector<int>& ranks,
                                  const std::function<std::string(const std::vector<std::string>& names)>& sentence) {
  drop_snapshots();  // the last ones may have the wrong bits
  // Only a few ranks know about the fault, but all must end because of it.
  const auto key_of = [](int rank) { return concat("name of rank ", rank); };
  world_.publish(key_of(world_.rank()), world_.name());
  if (sentence) {
    std::vector<std::string> names;
    for (const int rank : ranks) names.push_back(world_.read(key_of(rank)));
    world_.publish("disagreement", sentence(names));
  }
  const std::string heard = world_.read("disagreement");
  world_.barrier("told");  // the rendezvous ends with rank 0
  fail(blamed ? ExitCode::unfit : ExitCode::peer, "step ", step_, ": ", heard,
       ". Nothing of this state is saved. The ranks agreed when the checkpoints in ", checkpoints().string(), " were saved",
       how_to_go_on());
}

}  // namespace octet::train
