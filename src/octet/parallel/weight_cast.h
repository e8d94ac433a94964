// Makes the FP8 codes of weights from their primaries. On several ranks, each rank finds the amaxes of its shards, an exchange
// turns them into the amaxes of the whole weights, and each rank casts its shards. The number of launches does not depend on
// the number of weights, in any recipe. Only transposes take a launch for each weight: after a gather (units.h), or here if
// only a tensor axis divides the weights.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/cast_list.h"
#include "octet/kernels/tensor_list.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/layout.h"
#include "octet/tensor/tensor.h"

namespace octet::parallel {

struct Parameter;

class WeightCast {
 public:
  // Takes memory for the amaxes. The parameters must be materialised over `groups` (null: one rank). Both must outlive this
  // object.
  WeightCast(Device& device, const std::deque<Parameter>& parameters, const Groups* groups);

  // Makes the lists of the trained weights of these units, for run(). Call it when the scale slots of the weights are known.
  void prepare(Device& device, UnitRange units);
  // Casts the trained weights of these units with the present scale of each weight. The units must have been prepared. All
  // ranks call it together, with the same units.
  void run(Stream& stream, Arena& scratch, UnitRange units) const;
  // Casts one weight outside of a step. The weight need not be prepared. Takes memory only from the scratch. The ranks that
  // hold the weight call this together.
  void run(Stream& stream, Arena& scratch, const Parameter& parameter) const;

 private:
  struct Weight {
    const Parameter* parameter;
    Tensor rows = {}, columns = {};  // the amaxes of its tiles, F32 kernels::amax_shape; absent if they are not needed
  };

  // The ops that cast some weights.
  struct Ops {
    std::vector<kernels::Quantize> whole;  // on one rank
    std::vector<kernels::ShardAmax> amaxes;
    std::vector<kernels::ScalesFromAmax> scales;
    std::vector<kernels::CastShard> shards;
  };
  // The same ops as lists. Weights that differ in kind (recipe, dtype) are in different lists.
  struct Casts {
    UnitRange units;
    std::vector<Weight> weights;
    kernels::TensorList recorded;                             // amaxes that a cast records; zeroed before it
    std::vector<kernels::CastList<kernels::Quantize>> whole;
    std::vector<kernels::CastList<kernels::ShardAmax>> amaxes;
    std::vector<kernels::CastList<kernels::ScalesFromAmax>> scales;
    std::vector<kernels::CastList<kernels::CastShard>> shards;
  };

  void add_ops(const Weight& weight, Ops& ops) const;
  std::optional<int> section_of(const Parameter& p, kernels::Along along) const;
  std::int64_t lay_out();
  Tensor stretch(int section, std::span<const Weight> weights) const;
  void reduce_amaxes(Stream& stream, Arena& scratch, std::span<const Weight> weights) const;
  // Runs Ops or Casts of these weights.
  template <class Work>
  void run(Stream& stream, Arena& scratch, const Work& work, std::span<const Weight> weights) const;

  const Groups* groups_;         // null if one rank has all of every weight
  std::vector<Weight> weights_;  // in the order of the parameters
  Buffer memory_;
  Tensor amaxes_;  // [n] F32 of all weights; absent if scales come from histories
  std::vector<Casts> casts_;
};

}  // namespace octet::parallel
