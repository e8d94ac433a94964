// Casts of many weights in one launch, so that the number of launches of an optimizer step does not depend on the number of
// weights. Each op of this file gives the bits of the op for a single weight (quantize.h, shard.h). The tables of a list hold
// addresses, so the tensors must not move.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/op_table.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/shard.h"

namespace octet::kernels {

// What a GPU reads of one op: the source and the epilogues of its kernels, which only the CUDA backend knows.
struct CastItem {
  alignas(16) std::array<std::byte, 384> bytes = {};
};

// Op is Quantize, ShardAmax, ScalesFromAmax or CastShard.
template <class Op>
class CastList {
 public:
  CastList() = default;
  // Checks the ops, and writes their table in device memory. All ops must have the same source dtype, format, tile and scale
  // source. Quantize must have no groups of rows here.
  CastList(Device& device, std::vector<Op> ops);

  const std::vector<Op>& ops() const { return ops_; }
  const OpTable<CastItem>& table() const { return table_; }
  const Work& work() const { return work_; }
  // The number of amaxes that a GPU must know before it quantises.
  std::int64_t amaxes() const { return amaxes_; }

 private:
  std::vector<Op> ops_;
  OpTable<CastItem> table_;
  Work work_;
  std::int64_t amaxes_ = 0;
};

// Takes one launch, or two and a zeroing if amaxes must be known first.
void quantize(Stream& stream, Arena& scratch, const CastList<Quantize>& list);
// Take one launch each.
void shard_amax(Stream& stream, const CastList<ShardAmax>& list);
void scales_from_amax(Stream& stream, const CastList<ScalesFromAmax>& list);
void cast_shard(Stream& stream, const CastList<CastShard>& list);

}  // namespace octet::kernels
