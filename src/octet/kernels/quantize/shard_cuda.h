// The CUDA backend of shard.h. shard.cpp checks the shapes and counts the work.
#pragma once

#include "octet/kernels/quantize/shard.h"

namespace octet::kernels::cuda {

void shard_amax(Stream& stream, const ShardAmax& op);  // not for an empty shard
void scales_from_amax(Stream& stream, const ScalesFromAmax& op);
void cast_shard(Stream& stream, const CastShard& op);

}  // namespace octet::kernels::cuda
