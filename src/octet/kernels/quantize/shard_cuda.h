// The CUDA backend of shard.h. Shapes have been checked and work counted in shard.cpp.
#pragma once

#include "octet/kernels/quantize/shard.h"

namespace octet::kernels::cuda {

void shard_amax(Queue& queue, const ShardAmax& op);  // of elements
void scales_from_amax(Queue& queue, const ScalesFromAmax& op);
void cast_shard(Queue& queue, const CastShard& op);

}  // namespace octet::kernels::cuda
