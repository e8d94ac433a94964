#include "octet/kernels/attention/attention_blocks.h"
#include "octet/kernels/attention/attention_tiles.h"

namespace octet::kernels::cpu {
namespace {

// [rows, K] of a product: rows of a matrix, or columns of one whose rows are K.
TileOperand rows_of(const BFloat16* data, std::int64_t stride) {
  return {.kind = TileOperand::Kind::bf16_k_last, .data = data, .stride = stride};
}
TileOperand columns_of(const BFloat16* data, std::int64_t stride) {
  return {.kind = TileOperand::Kind::bf16_k_first, .data = data, .stride = stride};
}
TileOperand rows_of(const Rows<BFloat16>& x) { return rows_of(x.data, x.stride); }
TileOperand columns_of(const Rows<BFloat16>& x) { return columns_of(x.data, x.stride); }

// The memory of a block of queries, beside the sums of forward (o) or backward (gq).
struct TileMemory {
  float *sums, *p, *dp;
  BFloat16 *p_half, *ds_half;  // [q_block, row_length]
  float* rows;                 // two numbers for each query
  float* packed;

  TileMemory(const AttentionPlan& plan, float* memory) {
    Pieces<float> pieces(memory);
    const std::int64_t block = plan.q_rows() * plan.row_length();
    sums = pieces.take(plan.q_rows() * plan.sums_stride());
    p = pieces.take(block);
    dp = pieces.take(block);
    p_half = reinterpret_cast<BFloat16*>(pieces.take(block / 2));
    ds_half = reinterpret_cast<BFloat16*>(pieces.take(block / 2));
    rows = pieces.take(2 * plan.q_rows());
    packed = pieces.take(0);
  }
};

void scale_row(float* row, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= scale;
}

}  // namespace

void forward_block_with_tiles(const TileKernel& kernel, const AttentionForward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t h, std::int64_t begin, float* memory) {
  const std::int64_t dim = plan.head_dim, g = h / (plan.heads / plan.kv_heads);
  const std::int64_t stride = plan.row_length(), o_stride = plan.sums_stride(), rows = std::min(plan.q_block, plan.sq - begin);
  const auto scale = static_cast<float>(op.shape.scale);
  const TileMemory m(plan, memory);
  auto* const softmax = reinterpret_cast<Softmax<float>*>(m.rows);
  std::fill_n(m.sums, plan.q_rows() * o_stride, 0.0f);
  std::fill_n(softmax, rows, Softmax<float>{});

  const Rows<BFloat16> q(op.q, b * plan.sq + begin, h * dim);
  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const Rows<BFloat16> k(op.k, b * plan.sk + first, g * dim), v(op.v, b * plan.sk + first, g * dim);
    kernel.multiply({.m = rows,
                     .n = width,
                     .k = dim,
                     .a = rows_of(q),
                     .b = rows_of(k),
                     .sums = m.p,
                     .sums_stride = stride,
                     .memory = m.packed});
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const row = m.p + i * stride;
      scale_row(row, width, scale);
      enter_logits(row, mask(begin + i, first, width), width, softmax[i], m.sums + i * o_stride, dim);
      store_row(m.p_half + i * stride, row, width);
    }
    kernel.multiply({.m = rows,
                     .n = dim,
                     .k = width,
                     .a = rows_of(m.p_half, stride),
                     .b = columns_of(v),
                     .accumulate = true,
                     .sums = m.sums,
                     .sums_stride = o_stride,
                     .memory = m.packed});
  }
  const Rows<BFloat16> out(op.o, b * plan.sq + begin, h * dim);
  auto* const lse = op.lse.as<float>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  for (std::int64_t i = 0; i < rows; ++i) lse[i] = finish_query(out[i], m.sums + i * o_stride, dim, softmax[i]);
}

namespace {

void backward_block_with_tiles(const TileKernel& kernel, const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b,
                               std::int64_t h, std::int64_t begin, float* gk, float* gv, const TileMemory& m) {
  const std::int64_t dim = plan.head_dim, g = h / (plan.heads / plan.kv_heads), token = b * plan.sq + begin;
  const std::int64_t stride = plan.row_length(), sums_stride = plan.sums_stride(), rows = std::min(plan.q_block, plan.sq - begin);
  const auto scale = static_cast<float>(op.shape.scale);
  const Rows<BFloat16> q(op.q, token, h * dim), go(op.go, token, h * dim), o(op.o, token, h * dim), gq(op.gq, token, h * dim);
  const auto* const lse = op.lse.as<float>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  float* const delta = m.rows;  // rowsum(gO O)
  for (std::int64_t i = 0; i < rows; ++i) {
    load_row(m.packed, go[i], dim);
    load_row(m.packed + dim, o[i], dim);
    delta[i] = dot_row(m.packed, m.packed + dim, dim);
  }
  std::fill_n(m.sums, plan.q_rows() * sums_stride, 0.0f);

  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const Rows<BFloat16> k(op.k, b * plan.sk + first, g * dim), v(op.v, b * plan.sk + first, g * dim);
    const auto logits = [&](const Rows<BFloat16>& a, const Rows<BFloat16>& keys, float* sums) {
      kernel.multiply({.m = rows,
                       .n = width,
                       .k = dim,
                       .a = rows_of(a),
                       .b = rows_of(keys),
                       .sums = sums,
                       .sums_stride = stride,
                       .memory = m.packed});
    };
    logits(q, k, m.p);
    logits(go, v, m.dp);
    for (std::int64_t i = 0; i < rows; ++i) {
      float *const p = m.p + i * stride, *const dp = m.dp + i * stride;
      scale_row(p, width, scale);
      enter_gradients(p, dp, mask(begin + i, first, width), width, lse[i], delta[i]);
      store_row(m.p_half + i * stride, p, width);
      store_row(m.ds_half + i * stride, dp, width);
    }
    const auto add = [&](const TileOperand& a, std::int64_t count, const Rows<BFloat16>& y, std::int64_t length, float* sums) {
      kernel.multiply({.m = count,
                       .n = dim,
                       .k = length,
                       .a = a,
                       .b = columns_of(y),
                       .accumulate = true,
                       .sums = sums,
                       .sums_stride = sums_stride,
                       .memory = m.packed});
    };
    add(columns_of(m.p_half, stride), width, go, rows, gv + first * sums_stride);
    add(rows_of(m.ds_half, stride), rows, k, width, m.sums);
    add(columns_of(m.ds_half, stride), width, q, rows, gk + first * sums_stride);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    float* const row = m.sums + i * sums_stride;
    scale_row(row, dim, scale);
    store_row(gq[i], row, dim);
  }
}

}  // namespace

void backward_part_with_tiles(const TileKernel& kernel, const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t first_head, float* gk, float* gv, float* memory) {
  const TileMemory m(plan, memory);
  std::fill_n(gk, plan.kv_sums(), 0.0f);
  std::fill_n(gv, plan.kv_sums(), 0.0f);
  for (std::int64_t h = first_head; h < first_head + plan.heads_per_part(); ++h) {
    for (std::int64_t begin = 0; begin < plan.sq; begin += plan.q_block)
      backward_block_with_tiles(kernel, op, plan, b, h, begin, gk, gv, m);
  }
  scale_row(gk, plan.kv_sums(), static_cast<float>(op.shape.scale));
}

}  // namespace octet::kernels::cpu
