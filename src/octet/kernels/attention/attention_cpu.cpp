#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/kernels/attention/attention_blocks.h"
#include "octet/kernels/attention/attention_plan.h"
#include "octet/kernels/attention/attention_tiles.h"
#include "octet/kernels/gemm/blas.h"
#include "octet/kernels/gemm/lanes.h"
#include "octet/kernels/quantize/decode_table.h"
#include "octet/kernels/vector_math.h"

namespace octet {

// A code as the element type of an operand.
template <Fp8Format kFormat>
struct Code {
  std::uint8_t code;
};
using E4m3 = Code<Fp8Format::e4m3>;
using E5m2 = Code<Fp8Format::e5m2>;
template <Fp8Format kFormat>
inline constexpr DType kDTypeOf<Code<kFormat>> = dtype_of(kFormat);

}  // namespace octet

namespace octet::kernels::cpu {
namespace {

using kernels::load_row;
// Loads the values of codes without their scale.
template <Fp8Format kFormat>
void load_row(float* out, const Code<kFormat>* in, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_table(kFormat)[in[i].code];
}

template <class T>
constexpr bool kIsFp8 = std::is_same_v<T, E4m3>;
template <class T>
constexpr bool kConverts = !std::is_same_v<T, Real<T>>;
// The type of results.
template <class T>
using Out = std::conditional_t<kIsFp8<T>, BFloat16, T>;

// [count, width] in the form that BLAS reads: in place, or converted into `memory`.
template <class T>
BlasMatrix<Real<T>> matrix(const Rows<T>& rows, std::int64_t count, std::int64_t width, Real<T>* memory) {
  if constexpr (kConverts<T>) {
    for (std::int64_t i = 0; i < count; ++i) load_row(memory + i * width, rows[i], width);
    return {memory, width};
  } else {
    return {rows.data, std::max(rows.stride, width)};
  }
}

template <class R>
BlasMatrix<R> transposed(BlasMatrix<R> x) {
  x.order = Order::transposed;
  return x;
}
template <class R>
BlasMatrix<R> from_row(BlasMatrix<R> x, std::int64_t row) {
  x.data += row * x.stride;
  return x;
}

// S = scores * Q Kᵀ and O = values * P V / sum. In FP8 these contain the scales of the codes.
template <class R>
struct ScoreFactors {
  R scores, values = 1;
};

// Processes one block of queries of one head: goes over its keys from left to right with a running maximum (online softmax).
template <class T>
void forward_block(const AttentionForward& op, const AttentionPlan& plan, const ScoreFactors<Real<T>>& factors, std::int64_t b,
                   std::int64_t h, std::int64_t begin, Real<T>* memory) {
  using R = Real<T>;
  const std::int64_t dim = plan.head_dim, stride = plan.sums_stride(), g = h / (plan.heads / plan.kv_heads);
  const std::int64_t rows = std::min(plan.q_block, plan.sq - begin);
  Pieces<R> pieces(memory);
  R* const q_memory = kConverts<T> ? pieces.take(plan.q_block * dim) : nullptr;
  R* const k_memory = kConverts<T> ? pieces.take(plan.k_block * dim) : nullptr;
  R* const v_memory = kConverts<T> ? pieces.take(plan.k_block * dim) : nullptr;
  R* const o = pieces.take(plan.q_block * stride);
  R* const p = pieces.take(plan.q_block * plan.row_length());
  auto* const softmax = reinterpret_cast<Softmax<R>*>(pieces.take(2 * plan.q_block));
  std::fill_n(o, rows * stride, R(0));
  std::fill_n(softmax, rows, Softmax<R>{});

  const BlasMatrix<R> q = matrix(Rows<T>(op.q, b * plan.sq + begin, h * dim), rows, dim, q_memory);
  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const BlasMatrix<R> k = matrix(Rows<T>(op.k, b * plan.sk + first, g * dim), width, dim, k_memory);
    multiply(Product<R>{.m = rows,
                        .n = width,
                        .k = dim,
                        .alpha = factors.scores,
                        .a = q,
                        .b = transposed(k),
                        .d = p,
                        .d_stride = plan.row_length()});
    for (std::int64_t i = 0; i < rows; ++i) {
      R* const row = p + i * plan.row_length();
      enter_logits(row, mask(begin + i, first, width), width, softmax[i], o + i * stride, dim);
      if constexpr (kIsFp8<T>) round_row_to_fp8<Fp8Format::e4m3>(row, width, kProbabilityScale);
    }
    const BlasMatrix<R> v = matrix(Rows<T>(op.v, b * plan.sk + first, g * dim), width, dim, v_memory);
    multiply(
        Product<R>{.m = rows, .n = dim, .k = width, .a = {p, plan.row_length()}, .b = v, .beta = 1, .d = o, .d_stride = stride});
  }
  const Rows<Out<T>> out(op.o, b * plan.sq + begin, h * dim);
  R* const lse = op.lse.as<R>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  for (std::int64_t i = 0; i < rows; ++i) {
    if constexpr (kIsFp8<T>) {
      for (std::int64_t c = 0; c < dim; ++c) o[i * stride + c] *= factors.values;
    }
    lse[i] = finish_query(out[i], o + i * stride, dim, softmax[i]);
  }
}

template <class T>
void forward(const AttentionForward& op, const AttentionPlan& plan, const ScoreFactors<Real<T>>& factors,
             const AttentionScratch& scratch) {
  [[maybe_unused]] std::optional<ForwardTiles> tiles;
  if constexpr (kConverts<T> && !kIsFp8<T>) {
    if (const TileKernel* const kernel = tile_kernel()) tiles.emplace(*kernel, op, plan, scratch.packed);
  }
  for_each_task(scratch.lanes, plan.forward_tasks(), [&](std::int64_t lane, std::int64_t task) {
    // The last blocks of queries see the most keys. They come first, so that no thread is left with a long task at the end.
    const std::int64_t block = plan.q_blocks() - 1 - task % plan.q_blocks(), head = task / plan.q_blocks();
    const std::int64_t b = head / plan.heads, h = head % plan.heads;
    Real<T>* memory = static_cast<Real<T>*>(scratch.lane) + lane * plan.forward_lane();
    if constexpr (kConverts<T> && !kIsFp8<T>) {
      if (tiles) return forward_block_with_tiles(*tiles, op, plan, b, h, block * plan.q_block, memory);
    }
    forward_block<T>(op, plan, factors, b, h, block * plan.q_block, memory);
  });
}

// The memory in which a backward task goes over its heads and blocks of queries.
template <class R>
struct BackwardMemory {
  R *q, *go;  // blocks of queries, converted
  R *gq, *p, *dp;
  R* delta;            // rowsum(gO O)
  BlasMatrix<R> k, v;  // [sk, dim] of the key/value head
  R *gk, *gv;          // [sk, dim], accumulated
};

// Casts a row of dS as `factors` says, and returns its largest magnitude.
template <Fp8Format kFormat>
float cast_score_gradients(float* ds, std::int64_t n, const GradientFactors<float>& factors) {
  std::uint32_t largest = 0;  // magnitudes are ordered as their bits, those of NaN above all others
  for (std::int64_t i = 0; i < n; ++i) {
    ds[i] *= factors.ds;
    largest = std::max(largest, std::bit_cast<std::uint32_t>(std::abs(ds[i])));
  }
  round_row_to_fp8<kFormat>(ds, n, factors.ds_scale);
  return std::bit_cast<float>(largest);
}

void raise(float* amax, float to) {
  const std::atomic_ref<float> shared(*amax);
  for (float seen = shared.load(); std::bit_cast<std::uint32_t>(seen) < std::bit_cast<std::uint32_t>(to);) {
    if (shared.compare_exchange_weak(seen, to)) return;
  }
}

// G is the type of gO.
template <class T, class G>
void backward_block(const AttentionBackward& op, const AttentionPlan& plan, const GradientFactors<Real<T>>& factors,
                    std::int64_t b, std::int64_t h, std::int64_t begin, const BackwardMemory<Real<T>>& memory) {
  using R = Real<T>;
  const std::int64_t dim = plan.head_dim, stride = plan.row_length(), sums_stride = plan.sums_stride();
  const std::int64_t rows = std::min(plan.q_block, plan.sq - begin), token = b * plan.sq + begin;
  const BlasMatrix<R> q = matrix(Rows<T>(op.q, token, h * dim), rows, dim, memory.q);
  const BlasMatrix<R> go = matrix(Rows<G>(op.go, token, h * dim), rows, dim, memory.go);
  const R* const lse = op.lse.as<R>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  // gQ's memory is not used until the first GEMM adds to it.
  const BlasMatrix<R> o = matrix(Rows<T>(op.o, token, h * dim), rows, dim, memory.gq);
  for (std::int64_t i = 0; i < rows; ++i)
    memory.delta[i] = factors.delta * dot_row(go.data + i * go.stride, o.data + i * o.stride, dim);
  std::fill_n(memory.gq, rows * sums_stride, R(0));

  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const BlasMatrix<R> k = from_row(memory.k, first), v = from_row(memory.v, first);
    multiply(Product<R>{
        .m = rows, .n = width, .k = dim, .alpha = factors.scores, .a = q, .b = transposed(k), .d = memory.p, .d_stride = stride});
    multiply(Product<R>{.m = rows,
                        .n = width,
                        .k = dim,
                        .alpha = factors.gradients,
                        .a = go,
                        .b = transposed(v),
                        .d = memory.dp,
                        .d_stride = stride});
    for (std::int64_t i = 0; i < rows; ++i) {
      R *const p = memory.p + i * stride, *const ds = memory.dp + i * stride;
      enter_gradients(p, ds, mask(begin + i, first, width), width, lse[i], memory.delta[i]);
      if constexpr (kIsFp8<T>) {
        round_row_to_fp8<Fp8Format::e4m3>(p, width, kProbabilityScale);
        constexpr Fp8Format kGradients = std::is_same_v<G, E5m2> ? Fp8Format::e5m2 : Fp8Format::e4m3;
        const float amax = cast_score_gradients<kGradients>(ds, width, factors);
        if (factors.ds_amax) raise(factors.ds_amax, amax);
      }
    }
    const BlasMatrix<R> p{memory.p, stride}, ds{memory.dp, stride};
    multiply(Product<R>{.m = width,
                        .n = dim,
                        .k = rows,
                        .alpha = factors.gv,
                        .a = transposed(p),
                        .b = go,
                        .beta = 1,
                        .d = memory.gv + first * sums_stride,
                        .d_stride = sums_stride});
    multiply(Product<R>{.m = rows,
                        .n = dim,
                        .k = width,
                        .alpha = factors.gq,
                        .a = ds,
                        .b = k,
                        .beta = 1,
                        .d = memory.gq,
                        .d_stride = sums_stride});
    multiply(Product<R>{.m = width,
                        .n = dim,
                        .k = rows,
                        .alpha = factors.gk,
                        .a = transposed(ds),
                        .b = q,
                        .beta = 1,
                        .d = memory.gk + first * sums_stride,
                        .d_stride = sums_stride});
  }
  const Rows<Out<T>> gq(op.gq, token, h * dim);
  for (std::int64_t i = 0; i < rows; ++i) store_row(gq[i], memory.gq + i * sums_stride, dim);
}

template <class T>
void store_kv(const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b, std::int64_t g, const Real<T>* gk,
              const Real<T>* gv) {
  const std::int64_t dim = plan.head_dim;
  const Rows<Out<T>> k_out(op.gk, b * plan.sk, g * dim), v_out(op.gv, b * plan.sk, g * dim);
  for (std::int64_t j = 0; j < plan.sk; ++j) {
    store_row(k_out[j], gk + j * plan.sums_stride(), dim);
    store_row(v_out[j], gv + j * plan.sums_stride(), dim);
  }
}

template <class T, class G = T>
void backward(const AttentionBackward& op, const AttentionPlan& plan, const GradientFactors<Real<T>>& factors,
              const AttentionScratch& scratch) {
  using R = Real<T>;
  const std::int64_t dim = plan.head_dim, kv_elements = plan.sk * dim, sums = plan.kv_sums();
  R* const partials = static_cast<R*>(scratch.partials);
  [[maybe_unused]] std::optional<BackwardTiles> tiles;
  if constexpr (kConverts<T> && !kIsFp8<T>) {
    if (const TileKernel* const kernel = tile_kernel()) tiles.emplace(*kernel, op, plan, scratch.packed);
  }
  for_each_task(scratch.lanes, plan.backward_tasks(), [&](std::int64_t lane, std::int64_t task) {
    const std::int64_t part = task % plan.parts, g = task / plan.parts % plan.kv_heads, b = task / plan.parts / plan.kv_heads;
    const std::int64_t first_head = g * (plan.heads / plan.kv_heads) + part * plan.heads_per_part();
    Pieces<R> pieces(static_cast<R*>(scratch.lane) + lane * plan.backward_lane());
    BackwardMemory<R> memory{};
    memory.gk = partials ? partials + task * 2 * sums : pieces.take(2 * sums);
    memory.gv = memory.gk + sums;
    if constexpr (kConverts<T> && !kIsFp8<T>) {
      if (tiles) {
        backward_part_with_tiles(*tiles, op, plan, b, first_head, memory.gk, memory.gv, pieces.take(0));
        if (!partials) store_kv<T>(op, plan, b, g, memory.gk, memory.gv);
        return;
      }
    }
    memory.gq = pieces.take(plan.q_block * plan.sums_stride());
    memory.p = pieces.take(plan.q_block * plan.row_length());
    memory.dp = pieces.take(plan.q_block * plan.row_length());
    memory.delta = pieces.take(plan.q_block);
    R *k_memory = nullptr, *v_memory = nullptr;
    if constexpr (kConverts<T>) {
      memory.q = pieces.take(plan.q_block * dim);
      memory.go = pieces.take(plan.q_block * dim);
      k_memory = pieces.take(kv_elements);
      v_memory = pieces.take(kv_elements);
    }
    memory.k = matrix(Rows<T>(op.k, b * plan.sk, g * dim), plan.sk, dim, k_memory);
    memory.v = matrix(Rows<T>(op.v, b * plan.sk, g * dim), plan.sk, dim, v_memory);
    std::fill_n(memory.gk, 2 * sums, R(0));

    for (std::int64_t h = first_head; h < first_head + plan.heads_per_part(); ++h) {
      for (std::int64_t begin = 0; begin < plan.sq; begin += plan.q_block)
        backward_block<T, G>(op, plan, factors, b, h, begin, memory);
    }
    if (!partials) store_kv<T>(op, plan, b, g, memory.gk, memory.gv);
  });
  if (!partials) return;
  parallel_for(plan.batch * plan.kv_heads, [&](std::int64_t i) {
    R* const sum = partials + i * plan.parts * 2 * sums;
    for (std::int64_t part = 1; part < plan.parts; ++part) {
      const R* const addend = sum + part * 2 * sums;
      for (std::int64_t j = 0; j < 2 * sums; ++j) sum[j] += addend[j];
    }
    store_kv<T>(op, plan, i / plan.kv_heads, i % plan.kv_heads, sum, sum + sums);
  });
}

}  // namespace

void attention_forward(const AttentionForward& op, const AttentionPlan& plan, const AttentionScratch& scratch) {
  visit_float(op.q.dtype, [&]<class T>() { forward<T>(op, plan, {.scores = static_cast<Real<T>>(op.shape.scale)}, scratch); });
}

void attention_forward_fp8(const AttentionForward& op, double score_factor, double value_factor, const AttentionPlan& plan,
                           const AttentionScratch& scratch) {
  forward<E4m3>(op, plan, {.scores = static_cast<float>(score_factor), .values = static_cast<float>(value_factor)}, scratch);
}

void attention_backward(const AttentionBackward& op, const AttentionPlan& plan, const AttentionScratch& scratch) {
  visit_float(op.q.dtype, [&]<class T>() {
    const auto scale = static_cast<Real<T>>(op.shape.scale);
    backward<T>(op, plan, {.scores = scale, .gq = scale, .gk = scale}, scratch);
  });
}

void attention_backward_fp8(const AttentionBackward& op, const GradientFactors<float>& factors, const AttentionPlan& plan,
                            const AttentionScratch& scratch) {
  if (op.go.dtype == DType::f8_e4m3) return backward<E4m3, E4m3>(op, plan, factors, scratch);
  backward<E4m3, E5m2>(op, plan, factors, scratch);
}

}  // namespace octet::kernels::cpu
