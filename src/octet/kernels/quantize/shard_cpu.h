// The CPU backend of shard.h. shard.cpp checks the shapes and counts the work.
#pragma once

#include "octet/kernels/quantize/shard.h"

namespace octet::kernels::cpu {

void shard_amax(const ShardAmax& op);  // not for an empty shard
void scales_from_amax(const ScalesFromAmax& op);
void cast_shard(const CastShard& op);

}  // namespace octet::kernels::cpu
