// Makes the FP8 codes of weights from their primaries. On several ranks each rank finds the amaxes of its shards, an exchange
// makes them those of the whole weights, and each rank casts its shards.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/shard.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/layout.h"
#include "octet/tensor/tensor.h"

namespace octet::parallel {

struct Parameter;

class WeightCast {
 public:
  // Takes memory for the amaxes. The parameters are materialised over `groups` (null: one rank), and both outlive this.
  WeightCast(Device& device, const std::deque<Parameter>& parameters, const Groups* groups);

  // Casts the trained weights of these units with the present scale of each weight. All ranks call it together, with the same
  // units.
  void run(Stream& stream, Arena& scratch, UnitRange units) const;
  // Casts one weight. The ranks that hold it call this together.
  void run(Stream& stream, Arena& scratch, const Parameter& parameter) const;

 private:
  struct Weight {
    const Parameter* parameter;
    Tensor rows = {}, columns = {};  // the amaxes of its tiles, F32 kernels::amax_shape; absent where nobody reads them
  };

  std::optional<int> section_of(const Parameter& p, kernels::Along along) const;
  std::int64_t lay_out();
  Tensor stretch(int section, std::span<const Weight> weights) const;
  void reduce_amaxes(Stream& stream, Arena& scratch, std::span<const Weight> weights) const;
  void run(Stream& stream, Arena& scratch, std::span<const Weight> weights) const;
  void cast_shard(Stream& stream, const Weight& weight) const;

  const Groups* groups_;         // null if one rank has all of every weight
  std::vector<Weight> weights_;  // in the order of the parameters
  Buffer memory_;
  Tensor amaxes_;  // [n] F32, of all weights; absent if their scales come from histories
};

}  // namespace octet::parallel
