#include <algorithm>
#include <cmath>

#include "octet/kernels/attention/attention_blocks.h"
#include "octet/kernels/attention/attention_tiles.h"
#include "octet/kernels/attention/softmax_rows.h"

namespace octet::kernels::cpu {
namespace {

using Kind = TileOperand::Kind;

TileOperand operand(Kind kind, const BFloat16* data, std::int64_t stride) {
  return {.kind = kind, .data = data, .stride = stride};
}

// The memory of a block of queries. `sums` are those of o or gQ.
struct TileMemory {
  float *sums, *p, *dp;
  BFloat16 *p_half, *ds_half;  // [q_block, row_length]
  float* rows;                 // two numbers for each query
  float* line;                 // two rows of a head
  std::uint16_t* transposed;   // [k_block, q_block] of P or dS
  std::uint16_t *q_rows, *go_rows, *q_columns, *go_columns;

  TileMemory(const AttentionPlan& plan, float* memory) {
    Pieces<float> pieces(memory);
    const std::int64_t block = plan.q_rows() * plan.row_length();
    const auto halves = [&](std::int64_t elements) { return reinterpret_cast<std::uint16_t*>(pieces.take(elements / 2)); };
    sums = pieces.take(plan.q_rows() * plan.sums_stride());
    p = pieces.take(block);
    dp = pieces.take(block);
    p_half = reinterpret_cast<BFloat16*>(halves(block));
    ds_half = reinterpret_cast<BFloat16*>(halves(block));
    transposed = halves(packed_elements(plan.k_block, plan.q_block));
    const std::int64_t panel = round_up(plan.q_block, kTileK) * round_up(plan.head_dim, kTileK);
    q_rows = halves(panel);
    rows = pieces.take(2 * plan.q_rows());
    // Only backward has memory for these.
    go_rows = halves(panel);
    q_columns = halves(panel);
    go_columns = halves(panel);
    line = pieces.take(2 * plan.head_dim);
  }
};

// Packs rows of queries as an operand with `rows` rows and K = length, or the other way round.
TilePanel pack(const TileKernel& kernel, TileSide side, const TileOperand& x, std::int64_t rows, std::int64_t k,
               std::uint16_t* out) {
  const TilePanel panel = TilePanel::packed(out, k);
  kernel.pack(x, side, rows, k, out, panel.next);
  return panel;
}

void scale_row(float* row, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= scale;
}

// The last tile of a row of P or dS may reach beyond what was stored.
void end_row(BFloat16* row, std::int64_t stored, std::int64_t width) {
  std::fill(row + stored, row + round_up(width, kTileK), BFloat16());
}

// Like enter_logits, for logits that are still to be scaled; P, rounded, goes to `p`.
void enter_scores(float* scores, float scale, SeenKeys seen, std::int64_t width, Softmax<float>& softmax, float* o,
                  std::int64_t dim, BFloat16* p) {
  const std::int64_t padded = seen.end > 0 ? pad_row(scores, seen) : 0;
  end_row(p, padded, width);
  if (seen.end == 0) return;
  const float largest = std::max(softmax.largest, scale * largest_score(scores, padded));
  // If all logits so far are -inf, any finite shift makes each term 0.
  const float added = exponentials(scores, padded, scale, std::isinf(largest) && largest < 0 ? 0.0f : largest, p);
  enter_sum(softmax, largest, added, o, dim);
}

// Like enter_gradients, for logits that are still to be scaled; P and dS, rounded, go to `p` and `ds`.
void enter_score_gradients(float* scores, const float* dp, float scale, SeenKeys seen, std::int64_t width, float lse, float delta,
                           BFloat16* p, BFloat16* ds) {
  // If all logits of a row are -inf, the row has no gradient, like a query that sees no key.
  if (std::isinf(lse) && lse < 0) seen = {0, 0};
  const std::int64_t padded = seen.end > 0 ? pad_row(scores, seen) : 0;
  score_gradients(scores, dp, padded, scale, lse, delta, p, ds);
  end_row(p, padded, width);
  std::fill(ds, ds + seen.begin, BFloat16());  // dP of what a query does not see may be NaN
  end_row(ds, seen.end, width);
}

std::uint16_t* nth(void* packed, const AttentionPlan& plan, std::int64_t n) {
  return static_cast<std::uint16_t*>(packed) + n * plan.batch * plan.kv_heads * plan.packed_head();
}

}  // namespace

PackedHeads::PackedHeads(const TileKernel& kernel, const AttentionPlan& plan, const Tensor& x, Kind kind, std::uint16_t* memory)
    : kernel_(kernel),
      plan_(plan),
      x_(x),
      kind_(kind),
      memory_(memory),
      packed_(static_cast<std::size_t>(plan.batch * plan.kv_heads)) {}

TilePanel PackedHeads::operator()(std::int64_t b, std::int64_t g) {
  const std::int64_t head = b * plan_.kv_heads + g;
  const std::int64_t rows = kind_ == Kind::bf16_k_last ? plan_.sk : plan_.head_dim;
  const std::int64_t k = kind_ == Kind::bf16_k_last ? plan_.head_dim : plan_.sk;
  std::uint16_t* const out = memory_ + head * plan_.packed_head();
  std::call_once(packed_[static_cast<std::size_t>(head)], [&] {
    const Rows<BFloat16> x(x_, b * plan_.sk, g * plan_.head_dim);
    pack(kernel_, TileSide::b, operand(kind_, x.data, x.stride), rows, k, out);
  });
  return TilePanel::packed(out, k);
}

ForwardTiles::ForwardTiles(const TileKernel& kernel, const AttentionForward& op, const AttentionPlan& plan, void* packed)
    : kernel(kernel),
      k_rows(kernel, plan, op.k, Kind::bf16_k_last, nth(packed, plan, 0)),
      v_columns(kernel, plan, op.v, Kind::bf16_k_first, nth(packed, plan, 1)) {}

BackwardTiles::BackwardTiles(const TileKernel& kernel, const AttentionBackward& op, const AttentionPlan& plan, void* packed)
    : kernel(kernel),
      k_rows(kernel, plan, op.k, Kind::bf16_k_last, nth(packed, plan, 0)),
      v_rows(kernel, plan, op.v, Kind::bf16_k_last, nth(packed, plan, 1)),
      k_columns(kernel, plan, op.k, Kind::bf16_k_first, nth(packed, plan, 2)) {}

void forward_block_with_tiles(ForwardTiles& tiles, const AttentionForward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t h, std::int64_t begin, float* memory) {
  const TileKernel& kernel = tiles.kernel;
  const TileSession session(kernel);
  const std::int64_t dim = plan.head_dim, g = h / (plan.heads / plan.kv_heads);
  const std::int64_t stride = plan.row_length(), o_stride = plan.sums_stride(), rows = std::min(plan.q_block, plan.sq - begin);
  const auto scale = static_cast<float>(op.shape.scale);
  const TileMemory m(plan, memory);
  auto* const softmax = reinterpret_cast<Softmax<float>*>(m.rows);
  std::fill_n(m.sums, plan.q_rows() * o_stride, 0.0f);
  std::fill_n(softmax, rows, Softmax<float>{});

  const Rows<BFloat16> q(op.q, b * plan.sq + begin, h * dim);
  const TilePanel q_rows = pack(kernel, TileSide::a, operand(Kind::bf16_k_last, q.data, q.stride), rows, dim, m.q_rows);
  const TilePanel k_rows = tiles.k_rows(b, g), v_columns = tiles.v_columns(b, g);
  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    kernel.multiply(
        {.m = rows, .n = width, .k = dim, .a = q_rows, .b = k_rows.from(first, 0), .sums = m.p, .sums_stride = stride});
    for (std::int64_t i = 0; i < rows; ++i) {
      enter_scores(m.p + i * stride, scale, mask(begin + i, first, width), width, softmax[i], m.sums + i * o_stride, dim,
                   m.p_half + i * stride);
    }
    kernel.multiply({.m = rows,
                     .n = dim,
                     .k = width,
                     .a = TilePanel::matrix(m.p_half, stride),
                     .b = v_columns.from(0, first),
                     .accumulate = true,
                     .sums = m.sums,
                     .sums_stride = o_stride});
  }
  const Rows<BFloat16> out(op.o, b * plan.sq + begin, h * dim);
  auto* const lse = op.lse.as<float>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  for (std::int64_t i = 0; i < rows; ++i) lse[i] = finish_query(out[i], m.sums + i * o_stride, dim, softmax[i]);
}

namespace {

void backward_block_with_tiles(BackwardTiles& tiles, const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b,
                               std::int64_t h, std::int64_t begin, float* gk, float* gv, const TileMemory& m) {
  const TileKernel& kernel = tiles.kernel;
  const std::int64_t dim = plan.head_dim, g = h / (plan.heads / plan.kv_heads), token = b * plan.sq + begin;
  const std::int64_t stride = plan.row_length(), sums_stride = plan.sums_stride(), rows = std::min(plan.q_block, plan.sq - begin);
  const auto scale = static_cast<float>(op.shape.scale);
  const Rows<BFloat16> q(op.q, token, h * dim), go(op.go, token, h * dim), o(op.o, token, h * dim), gq(op.gq, token, h * dim);
  const auto* const lse = op.lse.as<float>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  float* const delta = m.rows;  // rowsum(gO O)
  for (std::int64_t i = 0; i < rows; ++i) {
    load_row(m.line, go[i], dim);
    load_row(m.line + dim, o[i], dim);
    delta[i] = dot_row(m.line, m.line + dim, dim);
  }
  std::fill_n(m.sums, plan.q_rows() * sums_stride, 0.0f);

  const auto rows_of = [&](const Rows<BFloat16>& x, std::uint16_t* out) {
    return pack(kernel, TileSide::a, operand(Kind::bf16_k_last, x.data, x.stride), rows, dim, out);
  };
  const auto columns_of = [&](const Rows<BFloat16>& x, std::uint16_t* out) {
    return pack(kernel, TileSide::b, operand(Kind::bf16_k_first, x.data, x.stride), dim, rows, out);
  };
  const TilePanel q_rows = rows_of(q, m.q_rows), go_rows = rows_of(go, m.go_rows);
  const TilePanel q_columns = columns_of(q, m.q_columns), go_columns = columns_of(go, m.go_columns);
  const TilePanel k_rows = tiles.k_rows(b, g), v_rows = tiles.v_rows(b, g), k_columns = tiles.k_columns(b, g);

  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const auto logits = [&](const TilePanel& a, const TilePanel& keys, float* sums) {
      kernel.multiply({.m = rows, .n = width, .k = dim, .a = a, .b = keys.from(first, 0), .sums = sums, .sums_stride = stride});
    };
    logits(q_rows, k_rows, m.p);
    logits(go_rows, v_rows, m.dp);
    for (std::int64_t i = 0; i < rows; ++i) {
      enter_score_gradients(m.p + i * stride, m.dp + i * stride, scale, mask(begin + i, first, width), width, lse[i], delta[i],
                            m.p_half + i * stride, m.ds_half + i * stride);
    }
    const auto add = [&](std::int64_t count, std::int64_t length, const TilePanel& a, const TilePanel& y, float* sums) {
      kernel.multiply(
          {.m = count, .n = dim, .k = length, .a = a, .b = y, .accumulate = true, .sums = sums, .sums_stride = sums_stride});
    };
    const auto transposed = [&](const BFloat16* x) {
      return pack(kernel, TileSide::a, operand(Kind::bf16_k_first, x, stride), width, rows, m.transposed);
    };
    add(width, rows, transposed(m.p_half), go_columns, gv + first * sums_stride);
    add(rows, width, TilePanel::matrix(m.ds_half, stride), k_columns.from(0, first), m.sums);
    add(width, rows, transposed(m.ds_half), q_columns, gk + first * sums_stride);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    float* const row = m.sums + i * sums_stride;
    scale_row(row, dim, scale);
    store_row(gq[i], row, dim);
  }
}

}  // namespace

void backward_part_with_tiles(BackwardTiles& tiles, const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t first_head, float* gk, float* gv, float* memory) {
  const TileMemory m(plan, memory);
  const TileSession session(tiles.kernel);
  std::fill_n(gk, plan.kv_sums(), 0.0f);
  std::fill_n(gv, plan.kv_sums(), 0.0f);
  for (std::int64_t h = first_head; h < first_head + plan.heads_per_part(); ++h) {
    for (std::int64_t begin = 0; begin < plan.sq; begin += plan.q_block)
      backward_block_with_tiles(tiles, op, plan, b, h, begin, gk, gv, m);
  }
  scale_row(gk, plan.kv_sums(), static_cast<float>(op.shape.scale));
}

}  // namespace octet::kernels::cpu
