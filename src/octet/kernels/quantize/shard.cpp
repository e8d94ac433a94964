#include "octet/kernels/quantize/shard.h"

#include <algorithm>
#include <utility>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/quantize/cast_list.h"
#include "octet/kernels/quantize/cast_list_cuda.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/shard_cpu.h"
#include "octet/kernels/quantize/shard_cuda.h"

namespace octet::kernels {
namespace {

void check_shard(const char* op, const Shard& shard) {
  const Tensor& x = shard.x;
  require(x.shape.rank() == 1 && (x.dtype == DType::bf16 || x.dtype == DType::f32), op, ": x must be BF16 or F32 [count], got ",
          name_of(x.dtype), " ", x.shape);
  require(shard.whole.rank() == 2, op, ": a shard is one of a 2-D weight, got ", shard.whole);
  const std::int64_t count = x.elements(), end = shard.first + count, all = shard.whole.elements();
  const auto is_cut = [&](std::int64_t at) { return at == all || (at >= 0 && at < all && at % 128 == 0); };
  require(is_cut(shard.first) && is_cut(end), op, ": elements [", shard.first, ", ", end, ") of ", shard.whole,
          " are not cut at multiples of 128");
}

void check_grid(const char* op, const char* what, const Tensor& grid, ScaleTile tile, Along along, const Shape& whole) {
  const Shape shape = amax_shape(tile, along, whole);
  require(grid.dtype == DType::f32 && grid.shape == shape && grid.contiguous(), op, ": ", what, " must be F32 ", shape, ", got ",
          name_of(grid.dtype), " ", grid.shape);
}

void check(const ShardAmax& op) {
  check_shard("shard_amax", op.shard);
  require(op.rows || op.columns, "shard_amax: neither rows nor columns are asked for");
  if (op.rows) check_grid("shard_amax", "rows", op.rows, op.tile, Along::rows, op.shard.whole);
  if (op.columns) check_grid("shard_amax", "columns", op.columns, op.tile, Along::columns, op.shard.whole);
}

void check(const ScalesFromAmax& op) {
  require(op.spec.tile != ScaleTile::mx_1x32 || op.spec.format == Fp8Format::e4m3,
          "scales_from_amax: MX scales are defined for E4M3");
  check_grid("scales_from_amax", "amax", op.amax, op.spec.tile, op.along, op.whole);
  check_grid("scales_from_amax", "multipliers", op.multipliers, op.spec.tile, op.along, op.whole);
  const bool by_rows = op.along == Along::rows, padded = !by_rows && op.spec.tile == ScaleTile::mx_1x32;
  const std::int64_t rows = op.whole[by_rows ? 0 : 1], k = op.whole[by_rows ? 1 : 0];
  Shape shape = scale_shape(op.spec.tile, rows, k);
  if (padded && op.scale_inv.shape.rank() == 2) {
    const std::int64_t most = ceil_div(padded_k(k, op.spec.tile), 32);
    shape[1] = std::max(shape[1], std::min(op.scale_inv.shape[1], most));
  }
  require(op.scale_inv.dtype == scale_dtype(op.spec.tile) && op.scale_inv.shape == shape, "scales_from_amax: scale_inv must be ",
          name_of(scale_dtype(op.spec.tile)), " ", shape, padded ? ", padded or not" : "", ", got ", name_of(op.scale_inv.dtype),
          " ", op.scale_inv.shape);
}

void check(const CastShard& op) {
  check_shard("cast_shard", op.shard);
  require(op.spec.tile != ScaleTile::mx_1x32 || op.spec.format == Fp8Format::e4m3, "cast_shard: MX scales are defined for E4M3");
  const bool history = op.spec.source == ScaleSource::history;
  require(!history || op.spec.tile == ScaleTile::tensor, "cast_shard: only a per-tensor tile has a history");
  require(history == (op.scale != nullptr), "cast_shard: a scale is given with the history of a per-tensor tile, and only then");
  require(history || !op.amax, "cast_shard: amax is recorded for the history of a per-tensor tile");
  require(op.codes || op.column_codes || op.shard.x.elements() == 0, "cast_shard: no codes are asked for");
  const auto check_codes = [&](const Tensor& codes) {
    require(codes.shape == op.shard.x.shape && codes.dtype == dtype_of(op.spec.format), "cast_shard: codes must be ",
            name_of(dtype_of(op.spec.format)), " ", op.shard.x.shape, ", got ", name_of(codes.dtype), " ", codes.shape);
  };
  if (op.codes) {
    check_codes(op.codes);
    if (!history) check_grid("cast_shard", "multipliers", op.multipliers, op.spec.tile, Along::rows, op.shard.whole);
  }
  if (op.column_codes) {
    check_codes(op.column_codes);
    check_grid("cast_shard", "column_multipliers", op.column_multipliers, op.spec.tile, Along::columns, op.shard.whole);
  }
  if (history) {
    require(op.scale_inv && op.scale_inv.shape == Shape{1} && op.scale_inv.dtype == DType::f32,
            "cast_shard: scale_inv must be F32 [1], got ", name_of(op.scale_inv.dtype), " ", op.scale_inv.shape);
  }
}

Work work_of(const ShardAmax& op) { return {.bytes = static_cast<double>(op.shard.x.bytes())}; }
Work work_of(const ScalesFromAmax& op) { return {.bytes = static_cast<double>(2 * op.amax.bytes() + op.scale_inv.bytes())}; }
Work work_of(const CastShard& op) {
  double bytes = static_cast<double>(op.shard.x.bytes());
  for (const Tensor* codes : {&op.codes, &op.column_codes}) {
    if (*codes) bytes += static_cast<double>(codes->bytes());
  }
  return {.bytes = bytes};
}

// The tiles of W that hold elements of the shard, in whole rows of tiles.
std::int64_t chunks_of(const ShardAmax& op) {
  const Shard& shard = op.shard;
  if (shard.x.elements() == 0) return 0;
  constexpr std::int64_t kTile = 128;
  const std::int64_t width = shard.whole[1];
  return (ceil_div(ceil_div(shard.first + shard.x.elements(), width), kTile) - shard.first / width / kTile) *
         ceil_div(width, kTile);
}
std::int64_t chunks_of(const ScalesFromAmax& op) { return ceil_div(op.scale_inv.elements(), cuda::kScalesOfChunk); }
std::int64_t chunks_of(const CastShard& op) {
  const std::int64_t count = op.shard.x.elements();
  if (count == 0) return op.scale ? 1 : 0;
  return ceil_div(count, 8 * cuda::kCastThreads * cuda::cast_ahead(size_of(op.shard.x.dtype)));
}

bool are_alike(const ShardAmax& a, const ShardAmax& b) {
  return a.shard.x.dtype == b.shard.x.dtype && a.tile == b.tile && static_cast<bool>(a.columns) == static_cast<bool>(b.columns);
}
bool are_alike(const ScalesFromAmax& a, const ScalesFromAmax& b) { return a.spec.tile == b.spec.tile; }
bool are_alike(const CastShard& a, const CastShard& b) {
  return a.shard.x.dtype == b.shard.x.dtype && a.spec.format == b.spec.format && a.spec.tile == b.spec.tile;
}

}  // namespace

Shape amax_shape(ScaleTile tile, Along along, const Shape& whole) {
  require(tile != ScaleTile::block_1x128, "1x128 scales are not a weight's");
  require(along == Along::rows || !is_square(tile), "a square tile has no scales along columns");
  const std::int64_t rows = whole[0], cols = whole[1];
  if (along == Along::rows) return scale_shape(tile, rows, cols);
  return tile == ScaleTile::row ? Shape{cols} : Shape{ceil_div(rows, 32), cols};
}

void shard_amax(Stream& stream, const ShardAmax& op) {
  check(op);
  stream.count("shard_amax", work_of(op));
  if (op.shard.x.elements() == 0) return;
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::shard_amax(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::shard_amax(stream, op);
  }
}

void scales_from_amax(Stream& stream, const ScalesFromAmax& op) {
  check(op);
  stream.count("scales_from_amax", work_of(op));
  if (op.scale_inv.elements() == 0) return;
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::scales_from_amax(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::scales_from_amax(stream, op);
  }
}

void cast_shard(Stream& stream, const CastShard& op) {
  check(op);
  stream.count("cast_shard", work_of(op));
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::cast_shard(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::cast_shard(stream, op);
  }
}

template <class Op>
CastList<Op>::CastList(Device& device, std::vector<Op> ops) : ops_(std::move(ops)) {
  std::vector<CastItem> items;
  std::vector<std::int64_t> chunks;
  for (const Op& op : ops_) {
    check(op);
    require(are_alike(op, ops_.front()), "shards: a list with several kinds of casts");
    items.emplace_back();
    if constexpr (kCudaBackend) {
      if (device.kind() == DeviceKind::cuda) items.back() = cuda::item_of(op);
    }
    chunks.push_back(chunks_of(op));
    work_ += work_of(op);
  }
  table_ = OpTable<CastItem>(device, items, chunks);
}
template class CastList<ShardAmax>;
template class CastList<ScalesFromAmax>;
template class CastList<CastShard>;

void shard_amax(Stream& stream, const CastList<ShardAmax>& list) {
  if (list.table().chunks() == 0) return;
  stream.count("shard_amax", list.work());
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([&list] {
      for (const ShardAmax& op : list.ops()) {
        if (op.shard.x.elements() > 0) cpu::shard_amax(op);
      }
    });
  }
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::shard_amax(stream, list);
  }
}

void scales_from_amax(Stream& stream, const CastList<ScalesFromAmax>& list) {
  if (list.table().chunks() == 0) return;
  stream.count("scales_from_amax", list.work());
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([&list] {
      for (const ScalesFromAmax& op : list.ops()) cpu::scales_from_amax(op);
    });
  }
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::scales_from_amax(stream, list);
  }
}

void cast_shard(Stream& stream, const CastList<CastShard>& list) {
  if (list.table().chunks() == 0) return;
  stream.count("cast_shard", list.work());
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([&list] {
      for (const CastShard& op : list.ops()) cpu::cast_shard(op);
    });
  }
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::cast_shard(stream, list);
  }
}

}  // namespace octet::kernels
