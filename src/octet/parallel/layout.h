// How a model is laid out on the ranks of a mesh.
#pragma once

#include <array>
#include <cstdint>

#include "octet/base/math.h"
#include "octet/parallel/mesh.h"
#include "octet/tensor/dtype.h"

namespace octet::parallel {

using UnitRange = IndexRange<int>;  // units: parameters that are gathered and reduced together (schedule.h)

// How much ranks of shard x context keep of the weights that they do not update.
enum class Weights : std::uint8_t {
  kept,       // everything: weights are gathered once after each optimizer step (ZeRO-2)
  resharded,  // nothing: a unit is gathered before its use, forward and backward, and then dropped (ZeRO-3, FSDP)
};
// How much they keep of gradients.
enum class Gradients : std::uint8_t {
  whole,  // everything: gradients are reduced once, after the last micro-batch
  // A shard: a unit's gradient is reduced after its backward in every micro-batch, in the dtype in which ranks exchange it. What
  // several GEMMs of a micro-batch add up is added in that dtype, too: the head, which is computed in chunks of tokens, and a
  // tied embedding.
  sharded,
};

// Which gradients of weights a pass of a micro-batch begins: wgrad overwrites them (beta = 0), and adds to all others.
enum class Begins : std::uint8_t {
  all,    // the first micro-batch of a step
  slots,  // a later one: only those in slots (Place::slot), whose memory other units have used since
  none,   // a pass that takes turns with another one, which begins them
};

struct Kept {
  Weights weights;
  Gradients gradients;
  bool operator==(const Kept&) const = default;
};
// Returns what may be kept, in the order in which `auto` tries it, if parameters have `parts` shards. It takes the first that
// fits, because ranks that keep more send less. The last one is for those who ask for it: with several micro-batches the plan
// often predicts that it is faster than the two before it, but nobody has measured that on GPUs. In steps of one micro-batch
// whole gradients are sent as often as sharded ones; they take more memory (with more than a few layers) and, if they are
// exchanged in another dtype, a cast.
constexpr std::array<Kept, 4> kept_order(int parts, std::int64_t micro_batches) {
  constexpr Kept kBoth{Weights::kept, Gradients::whole}, kWeights{Weights::kept, Gradients::sharded},
      kNone{Weights::resharded, Gradients::sharded}, kGradients{Weights::resharded, Gradients::whole};
  if (parts > 1 && micro_batches == 1) return {kWeights, kNone, kBoth, kGradients};
  return {kBoth, kWeights, kNone, kGradients};
}

struct Layout {
  Mesh mesh = {};
  Weights weights = Weights::kept;
  Gradients gradients = Gradients::whole;
  DType reduce = DType::f32;  // in which ranks exchange gradients
  // False: every step has one micro-batch, so a gradient shard keeps the dtype of the reduce-scatter, which loses nothing. (Not
  // on a tensor axis, whose ranks add up what several of them hold.)
  bool accumulates = true;
  // The number of micro-batches that go through the model together and take turns (lanes, schedule.h).
  int lanes = 1;
};

}  // namespace octet::parallel
