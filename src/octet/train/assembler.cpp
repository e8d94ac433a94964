#include "octet/train/assembler.h"

#include <algorithm>
#include <cstring>

namespace octet::train {
namespace {

// Elements at a time: of a shard, and of the shards of all ranks. No device has to hold a whole parameter.
constexpr std::int64_t kOfShard = std::int64_t{1} << 20, kOfAll = std::int64_t{1} << 24;

}  // namespace

// Returns [t, n, count]: the shards of the n ranks of each of the t ranks of the tensor axis. The ranks of an expert gather them
// and tell those with which they exchange tokens, then a stage tells the others; rank 0 is among these.
Tensor Assembler::gather(const parallel::Parameter& p, const Tensor& part, Arena& scratch) {
  comm::Group &ranks = groups_.shards_of(p.spec.expert), &tensor = *groups_.tensor;
  const auto all_gather = [&](comm::Group& group, const Tensor& x, const Tensor& y) {
    units_.exchange([&](Stream& params) { group.all_gather(params, scratch, {.x = x, .y = y}); });
  };
  Tensor parts = part;
  if (ranks.size() > 1 || !p.held) {
    parts = allocate(scratch, part.dtype, {ranks.size() * part.rows()});
    if (p.held) all_gather(ranks, part, parts);
  }
  const bool own_stage = groups_.stages->rank() == p.stage;
  if (p.spec.expert && own_stage) {
    const int holder = store_.expert_place().holder(p.spec.expert);
    units_.exchange([&](Stream& params) { groups_.expert->broadcast(params, {.x = parts, .root = holder}); });
  }
  if (groups_.stages->size() > 1) {
    units_.exchange([&](Stream& params) { groups_.stages->broadcast(params, {.x = parts, .root = p.stage}); });
  }
  if (tensor.size() == 1) return parts;
  const Tensor all = allocate(scratch, part.dtype, {tensor.size() * parts.rows()});
  all_gather(tensor, parts, all);
  return all;
}

// Copies elements [begin, begin + count) of all shards from staging_ to where they belong.
void Assembler::place(const parallel::Parameter& p, std::int64_t begin, std::int64_t count, std::size_t width) {
  const Shape& global = p.cut.global();
  const int ranks = groups_.shards_of(p.spec.expert).size(), tensor = groups_.tensor->size();
  const std::byte* from = staging_.data();
  for (int t = 0; t < tensor; ++t) {
    const parallel::TensorCut cut(global, p.spec.cut, {t, tensor});
    for (std::int64_t r = 0; r < ranks; ++r, from += static_cast<std::size_t>(count) * width) {
      const std::int64_t at = r * p.stride + begin, here = std::min(count, p.elements() - at);
      if (here <= 0) continue;
      for (const parallel::TensorPiece& piece : cut.pieces(at, here)) {
        parallel::for_runs(piece, global, [&](std::int64_t element, std::int64_t local, std::int64_t elements) {
          std::memcpy(whole_.data() + static_cast<std::size_t>(element) * width,
                      from + static_cast<std::size_t>(local - at) * width, static_cast<std::size_t>(elements) * width);
        });
      }
    }
  }
}

Tensor Assembler::whole(const parallel::Parameter& p, Arena& scratch) {
  const Tensor& primary = p.primary();
  const std::size_t width = size_of(primary.dtype);
  const bool first = first_ && stream_.kind() != DeviceKind::meta;
  if (first) whole_.resize(static_cast<std::size_t>(p.cut.global().elements()) * width);
  const std::int64_t ranks = std::int64_t{groups_.shards_of(p.spec.expert).size()} * groups_.tensor->size();
  const std::int64_t piece = std::clamp<std::int64_t>(kOfAll / ranks, 1, kOfShard);
  for (std::int64_t begin = 0; begin < p.stride; begin += piece) {
    const ArenaScope scope(scratch);
    const std::int64_t count = std::min(piece, p.stride - begin);
    const Tensor part(behind(primary.data, static_cast<std::size_t>(begin) * width), primary.dtype, {count});
    const Tensor parts = gather(p, part, scratch);
    if (stream_.kind() == DeviceKind::meta) break;  // the other pieces take as much
    if (!first) continue;
    staging_.resize(parts.bytes());
    stream_.copy_to_host(staging_.data(), parts.data, parts.bytes());
    stream_.synchronize();
    groups_.check();
    place(p, begin, count, width);
  }
  return first ? Tensor(whole_.data(), primary.dtype, p.cut.global()) : Tensor{};
}

}  // namespace octet::train
