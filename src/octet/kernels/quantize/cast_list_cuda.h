// The CUDA backend of cast_list.h.
#pragma once

#include "octet/kernels/quantize/cast_list.h"

namespace octet::kernels::cuda {

// The item of an op in a table. `first_amax`: where its amaxes begin among those of the list.
CastItem item_of(const Quantize& op, std::int64_t first_amax);
CastItem item_of(const ShardAmax& op);
CastItem item_of(const ScalesFromAmax& op);
CastItem item_of(const CastShard& op);

// `amaxes` has room for list.amaxes() of them, in device memory.
void quantize(Stream& stream, const CastList<Quantize>& list, float* amaxes);
void shard_amax(Stream& stream, const CastList<ShardAmax>& list);
void scales_from_amax(Stream& stream, const CastList<ScalesFromAmax>& list);
void cast_shard(Stream& stream, const CastList<CastShard>& list);

// The number of chunks into which the kernels divide an op.
constexpr std::int64_t kScalesOfChunk = 256;
constexpr std::int64_t kCastThreads = 256;
constexpr int cast_ahead(std::size_t element_bytes) { return element_bytes == 2 ? 4 : 2; }  // vectors of a thread

}  // namespace octet::kernels::cuda
