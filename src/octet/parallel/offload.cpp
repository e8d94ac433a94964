#include "octet/parallel/offload.h"

#include <algorithm>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/kernels/adamw/fp8_moments.h"

namespace octet::parallel {
namespace {

// While one piece is updated, another one arrives and a third one leaves.
constexpr std::size_t kSlots = 3;

}  // namespace

// The pieces are laid out twice, because the size of the slots, that of the largest piece, is known afterwards.
Offload::Offload(Device& device, const ParameterStore& store) {
  const std::size_t largest = lay_out(store);
  for (std::size_t i = 0; i < std::min(pieces_.size(), kSlots); ++i)
    slots_.push_back(device.allocate(largest, MemoryCategory::moments));
  lay_out(store);
}

std::size_t Offload::lay_out(const ParameterStore& store) {
  const std::size_t room = store.storage().offload_slot;
  std::size_t used = 0, largest = 0;
  pieces_.clear();
  // In the order of the units: if the head is tied, the final norm is the last parameter, but belongs to the embedding's unit.
  std::vector<const Parameter*> in_order;
  for (const Parameter& p : store.parameters()) {
    if (!p.spec.frozen) in_order.push_back(&p);
  }
  std::stable_sort(in_order.begin(), in_order.end(), [](const Parameter* a, const Parameter* b) { return a->unit < b->unit; });
  for (const Parameter* parameter : in_order) {
    const Parameter& p = *parameter;
    std::size_t bytes = 0, alignment = 0;  // of kShardMultiple elements in all their states, and what aligning them can add
    const auto add = [&](const Tensor& state, std::int64_t numbers) {
      if (!state) return;
      bytes += bytes_of(state.dtype, {numbers});
      alignment += Device::kAlignment;
    };
    for (const Tensor& state : {p.master, p.moment1, p.moment2}) add(state, kShardMultiple);
    for (const Tensor& scales : {p.moment1_scale, p.moment2_scale}) add(scales, kernels::moment_scales(kShardMultiple));
    require(room >= alignment + bytes, "slots of ", room, " bytes for optimizer states");
    for (std::int64_t begin = 0; begin < p.shard_elements;) {
      if (pieces_.empty() || pieces_.back().unit != p.unit || room - used < alignment + bytes) {
        pieces_.push_back({.unit = p.unit});
        used = 0;
      }
      const std::int64_t most = static_cast<std::int64_t>((room - used - alignment) / bytes) * kShardMultiple;
      const std::int64_t end = std::min(p.shard_elements, begin + most);
      Piece& piece = pieces_.back();
      void* const slot = slots_.empty() ? nullptr : slots_[(pieces_.size() - 1) % kSlots].data();
      const auto fetched = [&](const Tensor& state, std::int64_t first, std::int64_t last) {
        if (!state) return Tensor();
        const Tensor host = state.flat().slice_rows(first, last), in_slot(behind(slot, used), host.dtype, host.shape);
        piece.copies.push_back({host, in_slot});
        used += round_up(in_slot.bytes(), Device::kAlignment);
        return in_slot;
      };
      const std::int64_t first_scale = begin / kernels::kMomentGroup, last_scale = kernels::moment_scales(end);
      piece.states.push_back({.parameter = &p,
                              .first = p.first_element + begin,
                              .elements = end - begin,
                              .weight = p.master ? fetched(p.master, begin, end) : p.primary().flat().slice_rows(begin, end),
                              .moment1 = fetched(p.moment1, begin, end),
                              .moment2 = fetched(p.moment2, begin, end),
                              .moment1_scale = fetched(p.moment1_scale, first_scale, last_scale),
                              .moment2_scale = fetched(p.moment2_scale, first_scale, last_scale)});
      largest = std::max(largest, used);
      begin = end;
    }
  }
  return largest;
}

void Offload::describe(StepShape& shape) const {
  shape.pieces.clear();
  for (const Piece& piece : pieces_) shape.pieces.push_back(piece.unit);
  shape.state_slots = static_cast<int>(slots_.size());
}

void Offload::run(Stream& stream, const Task& task) const {
  const bool fetches = task.kind == Kind::fetch;
  for (const auto& [host, slot] : pieces_[static_cast<std::size_t>(task.part)].copies) {
    stream.count(fetches ? "fetch states" : "offload states", {.bytes = static_cast<double>(host.bytes())});
    if (fetches) {
      stream.copy_to_device(slot.data, host.data, host.bytes());
    } else {
      stream.copy_to_host(host.data, slot.data, host.bytes());
    }
  }
}

}  // namespace octet::parallel
