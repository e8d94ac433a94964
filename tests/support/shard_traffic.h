// What a rank sends over shard x context in a step, in closed form (docs/parallelism.md, "Shards").
#pragma once

#include <utility>
#include <vector>

#include "octet/base/math.h"
#include "octet/train/engine.h"

namespace octet::testing {

struct ShardTraffic {
  comm::Traffic all_gather, reduce_scatter, all_reduce;
};

// Of a Llama of four layers or more, with a head of its own and without a tensor axis. A weight crosses in FP8 as one byte; its
// scales do not cross, but the amaxes they are made of: one F32 for each tile of the weight, and of scales of history one for
// each operand of a linear.
ShardTraffic shard_traffic(const train::EngineOptions& options, std::int64_t micro_batches);

}  // namespace octet::testing
