// The traffic of a rank over the shard x context group in a step, in closed form (docs/parallelism.md).
#pragma once

#include <utility>
#include <vector>

#include "octet/base/math.h"
#include "octet/train/engine.h"

namespace octet::testing {

struct ShardTraffic {
  comm::Traffic all_gather, reduce_scatter, all_reduce;
};

// Returns the traffic of a Llama with four or more layers, an untied head and no tensor axis. An FP8 weight is sent as one byte for each
// element. Its scales are not sent; instead, the amaxes from which they are computed are all-reduced: one F32 for each tile of a weight
// and, with delayed scaling, one F32 for each operand of a linear.
ShardTraffic shard_traffic(const train::EngineOptions& options, std::int64_t micro_batches);

}  // namespace octet::testing
