#include "octet/train/entries.h"

#include <string>
#include <utility>

namespace octet::train {
namespace {

using checkpoint::Entry;
using checkpoint::Slice;
using parallel::Parameter;
using recipes::HeldBy;
using recipes::ScaleState;

Entry nothing_of(std::string name, DType dtype, const Shape& global) {
  return {.name = std::move(name), .tensor = {nullptr, dtype, {0}}, .global = global, .slice = Slice::flat(global, 0, 0)};
}

// Adds the pieces of this rank's shard of a parameter or of one of its moments. Only Engine::apply() changes them, from its first
// update on, and with offload the copy back to host memory that follows it.
void add_pieces(std::vector<Entry>& entries, const Parameter& p, const char* suffix, const Tensor& part,
                const std::vector<parallel::TensorPiece>& pieces) {
  const std::string name = p.spec.name + suffix;
  if (pieces.empty()) entries.push_back(nothing_of(name, part.dtype, p.cut.global()));
  for (const parallel::TensorPiece& piece : pieces) {
    Slice slice = Slice::box(piece.start, piece.stop);
    slice.begin = piece.begin;
    slice.end = piece.end;
    entries.push_back(
        {.name = name, .tensor = p.of_shard(part, piece), .global = p.cut.global(), .slice = slice, .steady = true});
  }
}

void add_parameter(std::vector<Entry>& entries, const Parameter& p, bool moments,
                   const std::vector<parallel::TensorPiece>& pieces) {
  add_pieces(entries, p, "", p.primary(), pieces);
  if (!moments || p.spec.frozen) return;
  add_pieces(entries, p, ".moment1", p.moment1, pieces);
  add_pieces(entries, p, ".moment2", p.moment2, pieces);
}

Entry updates_of(const optim::Optimizer& optimizer) { return Entry::whole("optimizer.updates", optimizer.updates()); }

}  // namespace

std::vector<Entry> read_entries(const parallel::ParameterStore& store, const ScaleState& scales,
                                const optim::Optimizer* optimizer) {
  std::vector<Entry> entries;
  for (const Parameter& p : store.parameters()) {
    if (p.spec.saved) add_parameter(entries, p, optimizer != nullptr, p.pieces());
  }
  for (const ScaleState::Named& state : scales.tensors()) {
    entries.push_back(state.held == HeldBy::elsewhere ? nothing_of(state.name, state.tensor.dtype, state.tensor.shape)
                                                      : Entry::whole(state.name, state.tensor));
  }
  if (optimizer) entries.push_back(updates_of(*optimizer));
  return entries;
}

std::vector<Entry> written_entries(const parallel::ParameterStore& store, const ScaleState& scales,
                                   const optim::Optimizer& optimizer, const parallel::Groups& groups) {
  std::vector<Entry> entries;
  if (groups.replicas->rank() > 0) return entries;
  for (const Parameter& p : store.parameters()) {
    if (p.spec.saved) add_parameter(entries, p, true, p.own_pieces());
  }
  if (groups.tensor->rank() > 0) return entries;
  const bool first = groups.shards->rank() == 0 && groups.stages->rank() == 0;  // all stages have the scales of all dense layers
  const bool first_of_experts = groups.expert_shards().rank() == 0;
  for (const ScaleState::Named& state : scales.tensors()) {
    const bool writes = (state.held == HeldBy::all && first) || (state.held == HeldBy::some && first_of_experts);
    if (writes) entries.push_back(Entry::whole(state.name, state.tensor));
  }
  if (first) entries.push_back(updates_of(optimizer));
  return entries;
}

}  // namespace octet::train
