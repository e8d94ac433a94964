#include "octet/train/replica_check.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/kernels/bit_sums/bit_sums.h"

namespace octet::train {
namespace {

using parallel::Parameter;

struct Named {
  const char* suffix;
  Tensor tensor;
};

// Returns the state of this rank's shard of a parameter that outlives a step. A weight that is not frozen also has codes and
// values, which the next update makes again.
std::vector<Named> lasting(const Parameter& p) {
  std::vector<Named> all = {{"", p.primary()},
                            {".moment1", p.moment1},
                            {".moment2", p.moment2},
                            {".moment1_scale", p.moment1_scale},
                            {".moment2_scale", p.moment2_scale}};
  if (p.spec.frozen) {
    all.push_back({".codes", p.rowwise_shard});
    all.push_back({".column_codes", p.columnwise_shard});
  }
  std::erase_if(all, [](const Named& named) { return !named.tensor || named.tensor.elements() == 0; });
  return all;
}

// Whether all ranks of the tensor axis hold the same elements.
bool is_uncut(const Parameter& p, int tensor) {
  const std::vector<parallel::TensorPiece> pieces = p.pieces();
  return std::all_of(pieces.begin(), pieces.end(), [&](const parallel::TensorPiece& piece) { return piece.holders == tensor; });
}

bool all_equal(const std::vector<std::uint64_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

}  // namespace

std::vector<int> minority(const std::vector<std::uint64_t>& values, const std::vector<int>& ranks) {
  const auto most = std::max_element(values.begin(), values.end(), [&](std::uint64_t a, std::uint64_t b) {
    return std::count(values.begin(), values.end(), a) < std::count(values.begin(), values.end(), b);
  });
  const std::uint64_t right = *most;
  std::vector<int> wrong;
  if (2 * static_cast<std::size_t>(std::count(values.begin(), values.end(), right)) <= values.size()) return wrong;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != right) wrong.push_back(ranks[i]);
  }
  return wrong;
}

ReplicaCheck::ReplicaCheck(Device& device, const parallel::Mesh& mesh, int rank, const parallel::Groups& groups,
                           const parallel::ParameterStore& store, const recipes::ScaleState& scales, const Tensor& updates) {
  Axis replicate{.axis = parallel::Axis::replicate,
                 .group = groups.replicas.get(),
                 .ranks = mesh.group({parallel::Axis::replicate}, rank),
                 .tensors = {}};
  Axis tensor{.axis = parallel::Axis::tensor,
              .group = groups.tensor.get(),
              .ranks = mesh.group({parallel::Axis::tensor}, rank),
              .tensors = {}};
  const int replicas = groups.replicas->size(), parts = groups.tensor->size();
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, const Tensor& x, bool uncut) {
    if (replicas > 1) replicate.tensors.push_back(tensors.size());
    if (uncut) tensor.tensors.push_back(tensors.size());
    names_.push_back(std::move(name));
    tensors.push_back(x);
  };
  for (const Parameter& p : store.parameters()) {
    if (!p.held) continue;
    const bool uncut = parts > 1 && is_uncut(p, parts);
    if (replicas == 1 && !uncut) continue;
    for (const Named& named : lasting(p)) add(p.spec.name + named.suffix, named.tensor, uncut);
  }
  if (replicas > 1) {
    for (const recipes::ScaleState::Named& state : scales.tensors()) {
      if (state.held != recipes::HeldBy::elsewhere) add(state.name, state.tensor, false);
    }
    add("optimizer.updates", updates, false);
  }
  sums_.resize(tensors.size());
  tensors_ = {device, std::move(tensors)};
  for (Axis* axis : {&replicate, &tensor}) {
    if (axis->group->size() > 1) axes_.push_back(std::move(*axis));
  }
}

// Returns, for each rank of the axis, a hash of the sums of the first `count` tensors that its ranks hold in common.
ReplicaCheck::Sums ReplicaCheck::gather(Stream& stream, Arena& scratch, parallel::Units& units, const Axis& axis,
                                        std::size_t count) const {
  const ArenaScope temporaries(scratch);
  Sums some, all(axis.ranks.size());
  for (std::size_t i = 0; i < count; ++i) some.push_back(sums_[axis.tensors[i]]);
  const std::uint64_t own = checksum(std::as_bytes(std::span(some)));
  const Tensor mine = allocate(scratch, DType::i64, {1}),
               gathered = allocate(scratch, DType::i64, {static_cast<std::int64_t>(all.size())});
  stream.copy_to_device(mine.data, &own, sizeof own);
  units.exchange([&](Stream& params) { axis.group->all_gather(params, scratch, {.x = mine, .y = gathered}); });
  stream.copy_to_host(all.data(), gathered.data, gathered.bytes());
  stream.synchronize();
  axis.group->check();
  return all;
}

std::optional<Disagreement> ReplicaCheck::compare(Stream& stream, Arena& scratch, parallel::Units& units) {
  if (axes_.empty()) return std::nullopt;
  {
    const ArenaScope temporaries(scratch);
    const Tensor sums = allocate(scratch, DType::i64, {static_cast<std::int64_t>(sums_.size())});
    kernels::bit_sums(stream, {.x = tensors_, .sums = static_cast<std::uint64_t*>(sums.data)});
    stream.copy_to_host(sums_.data(), sums.data, sums.bytes());
    stream.synchronize();
  }
  std::optional<Disagreement> found;
  for (const Axis& axis : axes_) {
    const Sums hashes = gather(stream, scratch, units, axis, axis.tensors.size());
    if (all_equal(hashes)) continue;
    std::size_t equal = 0, different = axis.tensors.size();  // the first so many tensors are equal, and are not
    while (different - equal > 1) {
      const std::size_t middle = (equal + different) / 2;
      (all_equal(gather(stream, scratch, units, axis, middle)) ? equal : different) = middle;
    }
    Disagreement here{
        .axis = axis.axis, .ranks = axis.ranks, .wrong = minority(hashes, axis.ranks), .tensor = names_[axis.tensors[equal]]};
    if (!found || (found->wrong.empty() && !here.wrong.empty())) found = std::move(here);
  }
  return found;
}

}  // namespace octet::train
