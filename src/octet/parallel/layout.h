// How a model is laid out on the ranks of a mesh.
#pragma once

#include <array>
#include <cstdint>

#include "octet/base/math.h"
#include "octet/parallel/mesh.h"
#include "octet/tensor/dtype.h"

namespace octet::parallel {

using UnitRange = IndexRange<int>;  // units: parameters that are gathered and reduced together (schedule.h)

// How much the ranks of shard x context keep of the weights that they do not update.
enum class Weights : std::uint8_t {
  kept,       // everything: weights are gathered once after each optimizer step (ZeRO-2)
  resharded,  // nothing: a unit is gathered before each use, forward and backward, and then dropped (ZeRO-3, FSDP)
};
// How much the ranks of shard x context keep of gradients.
enum class Gradients : std::uint8_t {
  whole,  // everything: gradients are reduced once, after the last micro-batch
  // A shard. A unit's gradient is reduced after its backward in every micro-batch, in the dtype in which ranks exchange it.
  // Sums of several GEMMs within a micro-batch are also computed in that dtype: those of the head, which works in chunks of
  // tokens, and of a tied embedding.
  sharded,
};

// The weight gradients that a pass of a micro-batch overwrites (beta = 0); it adds to all others (beta = 1).
enum class Overwrites : std::uint8_t {
  all,    // the first micro-batch of a step
  slots,  // a later one: only those in slots (Place::slot), whose memory other units have used since
  none,   // a pass that takes turns with another one, which begins them
};

struct Kept {
  Weights weights;
  Gradients gradients;
  bool operator==(const Kept&) const = default;
};
// Returns the possible choices in the order in which `auto` tries them, if parameters have `parts` shards. `auto` takes the
// first one that fits, because ranks that keep more send less. It never takes the last one, which a user can ask for: with
// several micro-batches the plan often predicts that it is faster than the two before it, but this was not measured on GPUs. In
// steps of one micro-batch, sharded gradients are sent as often as whole ones. Whole gradients take more memory (with more than
// a few layers) and, if they are exchanged in another dtype, a cast.
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
  // False if every step has one micro-batch. A gradient shard then keeps the dtype of the reduce-scatter, which loses nothing.
  // Always true on a tensor axis, whose ranks sum the gradients that several of them hold.
  bool accumulates = true;
  // The number of micro-batches that pass through the model together and take turns (lanes, schedule.h).
  int lanes = 1;
};

}  // namespace octet::parallel
