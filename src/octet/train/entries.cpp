#include "octet/train/entries.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "octet/kernels/adamw/fp8_moments.h"

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

enum class Pieces : std::uint8_t { held, own };

// Adds the pieces of this rank's shard of a parameter, of one of its moments, or of the moments' scales, of which the shard
// begins at number `first` of what a rank of the tensor axis holds. Only Optimizer::update() changes them, and with offload the
// copy back to host memory that follows it.
void add_pieces(std::vector<Entry>& entries, const Parameter& p, const char* suffix, const Tensor& part,
                const parallel::TensorCut& cut, std::int64_t first, Pieces which) {
  const std::string name = p.spec.name + suffix;
  std::vector<parallel::TensorPiece> pieces;
  if (p.held && !(which == Pieces::own && p.replica)) pieces = cut.pieces(first, part.elements());
  if (which == Pieces::own) std::erase_if(pieces, [](const parallel::TensorPiece& piece) { return piece.holder > 0; });
  if (pieces.empty()) entries.push_back(nothing_of(name, part.dtype, cut.global()));
  for (const parallel::TensorPiece& piece : pieces) {
    Slice slice = Slice::box(piece.start, piece.stop);
    slice.begin = piece.begin;
    slice.end = piece.end;
    const std::int64_t begin = piece.local - first;
    entries.push_back({.name = name,
                       .tensor = part.flat().slice_rows(begin, begin + piece.elements()),
                       .global = cut.global(),
                       .slice = slice,
                       .steady = true});
  }
}

void add_parameter(std::vector<Entry>& entries, const Parameter& p, bool moments, Pieces which) {
  const auto add = [&](const char* suffix, const Tensor& part) {
    add_pieces(entries, p, suffix, part, p.cut, p.first_element, which);
  };
  add("", p.primary());
  if (!moments || p.spec.frozen) return;
  add(".moment1", p.moment1);
  add(".moment2", p.moment2);
  if (p.moment1.dtype != DType::f8_e4m3) return;
  const std::int64_t first = kernels::moment_scales(p.first_element);
  add_pieces(entries, p, ".moment1_scale", p.moment1_scale, p.scale_cut, first, which);
  add_pieces(entries, p, ".moment2_scale", p.moment2_scale, p.scale_cut, first, which);
}

Entry updates_of(const optim::Optimizer& optimizer) { return Entry::whole("optimizer.updates", optimizer.updates()); }

}  // namespace

std::vector<Entry> read_entries(const parallel::ParameterStore& store, const ScaleState& scales,
                                const optim::Optimizer* optimizer) {
  std::vector<Entry> entries;
  for (const Parameter& p : store.parameters()) {
    if (p.spec.saved) add_parameter(entries, p, optimizer != nullptr, Pieces::held);
  }
  for (const ScaleState::Named& state : scales.tensors()) {
    entries.push_back(state.held == HeldBy::elsewhere ? nothing_of(state.name, state.tensor.dtype, state.tensor.shape)
                                                      : Entry::whole(state.name, state.tensor));
  }
  if (optimizer) entries.push_back(updates_of(*optimizer));
  return entries;
}

std::uint64_t bytes_of_checkpoint(const std::vector<Entry>& entries) {
  std::map<std::string, std::uint64_t> tensors;  // a tensor may have several slices here
  for (const Entry& entry : entries) tensors[entry.name] = bytes_of(entry.tensor.dtype, entry.global);
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : tensors) sum += bytes;
  return sum;
}

std::vector<Entry> written_entries(const parallel::ParameterStore& store, const ScaleState& scales,
                                   const optim::Optimizer& optimizer, const parallel::Groups& groups) {
  std::vector<Entry> entries;
  if (groups.replicas->rank() > 0) return entries;
  for (const Parameter& p : store.parameters()) {
    if (p.spec.saved) add_parameter(entries, p, true, Pieces::own);
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
