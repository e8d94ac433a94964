// The CPU backend of shard.h. Shapes have been checked and work counted in shard.cpp.
#pragma once

#include "octet/kernels/quantize/shard.h"

namespace octet::kernels::cpu {

void shard_amax(const ShardAmax& op);  // of elements
void scales_from_amax(const ScalesFromAmax& op);
void cast_shard(const CastShard& op);

}  // namespace octet::kernels::cpu
