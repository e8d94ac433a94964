// How a model lies on the ranks of a mesh.
#pragma once

#include <array>
#include <cstdint>

#include "octet/parallel/mesh.h"
#include "octet/tensor/dtype.h"

namespace octet::parallel {

// What ranks of shard x context keep of weights that they do not update.
enum class Weights : std::uint8_t {
  kept,       // all: gathered once after each optimizer step
  resharded,  // nothing: a unit is gathered before it is used, forward and backward, and dropped
};
// And of gradients.
enum class Gradients : std::uint8_t {
  whole,    // all: reduced once, after the last micro-batch
  sharded,  // a rank's part: a unit's gradient, in the dtype that crosses the wire, is reduced after its backward in every
            // micro-batch. What several products of a micro-batch add to is added up in that dtype, too: the head, which is
            // computed in chunks of tokens, and a tied embedding
};

struct Kept {
  Weights weights;
  Gradients gradients;
  bool operator==(const Kept&) const = default;
};
// Both, in the order in which they are tried where parameters lie in `parts` and a step has so many micro-batches: the first that
// fits is the fastest, as who keeps more sends less. In steps of one, whole gradients are sent no less often; they take more memory
// (of more than a few layers) and, where they cross in another dtype, a cast.
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
  DType reduce = DType::f32;  // what gradients cross the wire in
  // False: steps are of one micro-batch, and parts of sharded gradients stay as they came, which loses nothing. (Not on a tensor
  // axis, whose ranks add up what several hold.)
  bool accumulates = true;
};

}  // namespace octet::parallel
