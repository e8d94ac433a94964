#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/kernels/attention/attention_plan.h"
#include "octet/kernels/gemm/blas.h"
#include "octet/kernels/gemm/lanes.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

template <class T>
constexpr bool kConverts = !std::is_same_v<T, Real<T>>;

// Divides a lane's memory into consecutive pieces.
template <class R>
class Pieces {
 public:
  explicit Pieces(R* memory) : next_(memory) {}
  R* take(std::int64_t elements) {
    R* result = next_;
    next_ += elements;
    return result;
  }

 private:
  R* next_;
};

// The rows of a tensor from `row` on, without the columns before `column`.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  Rows(const Tensor& x, std::int64_t row, std::int64_t column)
      : data(x.as<T>() + row * x.row_stride + column), stride(x.row_stride) {}
  T* operator[](std::int64_t i) const { return data + i * stride; }
};

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

// The keys of a tile that a query sees: [begin, end), or {0, 0} if it sees none.
struct SeenKeys {
  std::int64_t begin, end;
};

// Computes which keys the queries of a sequence see.
class Mask {
 public:
  template <class Op>
  Mask(const AttentionPlan& plan, const Op& op, std::int64_t b)
      : plan_(plan),
        first_keys_(op.first_keys ? op.first_keys.template as<std::int32_t>() + b * plan.sq : nullptr),
        keys_before_(op.keys_before) {}

  // Which of the keys [first, first + width) query `i` sees.
  SeenKeys operator()(std::int64_t i, std::int64_t first, std::int64_t width) const {
    const std::int64_t end = std::clamp<std::int64_t>(i + plan_.offset() + 1 - first, 0, width);
    const std::int64_t document = first_keys_ ? first_keys_[i] - keys_before_ : 0;
    const std::int64_t begin = std::max<std::int64_t>(std::max(document, first_in_window(i)) - first, 0);
    return begin < end ? SeenKeys{begin, end} : SeenKeys{0, 0};
  }
  // The beginning of the first tile of which one of the queries [begin, begin
  // + rows) sees a key. A mask does not change the boundaries of tiles.
  std::int64_t first_tile(std::int64_t begin, std::int64_t rows) const {
    const std::int64_t document =
        first_keys_ ? *std::min_element(first_keys_ + begin, first_keys_ + begin + rows) - keys_before_ : 0;
    return std::max<std::int64_t>({document, first_in_window(begin), 0}) / plan_.k_block * plan_.k_block;
  }

 private:
  std::int64_t first_in_window(std::int64_t i) const { return plan_.window > 0 ? i + plan_.offset() + 1 - plan_.window : 0; }

  const AttentionPlan& plan_;
  const std::int32_t* first_keys_;
  std::int64_t keys_before_;
};

// Sets the logits before the first visible key and after the last one to -inf, up to a whole number of vectors. Their exp is 0.
// Handling the remainder separately would cost as much as several vectors. Returns the padded length.
template <class R>
std::int64_t pad_row(R* row, SeenKeys seen) {
  const std::int64_t padded = round_up(seen.end, kSumLanes);
  std::fill(row, row + seen.begin, -std::numeric_limits<R>::infinity());
  std::fill(row + seen.end, row + padded, -std::numeric_limits<R>::infinity());
  return padded;
}

// Processes one block of queries of one head: goes over its keys from left to right with a running maximum (online softmax).
template <class T>
void forward_block(const AttentionForward& op, const AttentionPlan& plan, std::int64_t b, std::int64_t h, std::int64_t begin,
                   Real<T>* memory) {
  using R = Real<T>;
  const std::int64_t dim = plan.head_dim, g = h / (plan.heads / plan.kv_heads);
  const std::int64_t rows = std::min(plan.q_block, plan.sq - begin);
  Pieces<R> pieces(memory);
  R* const q_memory = kConverts<T> ? pieces.take(plan.q_block * dim) : nullptr;
  R* const k_memory = kConverts<T> ? pieces.take(plan.k_block * dim) : nullptr;
  R* const v_memory = kConverts<T> ? pieces.take(plan.k_block * dim) : nullptr;
  R* const o = pieces.take(plan.q_block * dim);
  R* const p = pieces.take(plan.q_block * plan.row_length());
  R* const largest = pieces.take(plan.q_block);
  R* const sum = pieces.take(plan.q_block);
  std::fill_n(o, rows * dim, R(0));
  std::fill_n(largest, rows, -std::numeric_limits<R>::infinity());
  std::fill_n(sum, rows, R(0));

  const BlasMatrix<R> q = matrix(Rows<T>(op.q, b * plan.sq + begin, h * dim), rows, dim, q_memory);
  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const BlasMatrix<R> k = matrix(Rows<T>(op.k, b * plan.sk + first, g * dim), width, dim, k_memory);
    multiply(Product<R>{.m = rows,
                        .n = width,
                        .k = dim,
                        .alpha = static_cast<R>(op.shape.scale),
                        .a = q,
                        .b = transposed(k),
                        .d = p,
                        .d_stride = plan.row_length()});
    for (std::int64_t i = 0; i < rows; ++i) {
      R* const row = p + i * plan.row_length();
      const SeenKeys seen = mask(begin + i, first, width);
      const std::int64_t padded = pad_row(row, seen);
      std::fill(row + padded, row + std::max(padded, width), R(0));
      if (seen.end == 0) continue;
      const R shift = max_row(row, padded, largest[i]);
      // If all logits so far are -inf, any finite shift makes each term 0.
      const R added = exp_and_sum_row(row, padded, std::isinf(shift) && shift < 0 ? R(0) : shift);
      if (shift > largest[i]) {
        const R correction = exp_of(largest[i] - shift);
        sum[i] *= correction;
        for (std::int64_t c = 0; c < dim; ++c) o[i * dim + c] *= correction;
        largest[i] = shift;
      }
      sum[i] += added;
    }
    const BlasMatrix<R> v = matrix(Rows<T>(op.v, b * plan.sk + first, g * dim), width, dim, v_memory);
    multiply(
        Product<R>{.m = rows, .n = dim, .k = width, .a = {p, plan.row_length()}, .b = v, .beta = 1, .d = o, .d_stride = dim});
  }
  const Rows<T> out(op.o, b * plan.sq + begin, h * dim);
  R* const lse = op.lse.as<R>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  for (std::int64_t i = 0; i < rows; ++i) {
    const R total = sum[i];
    if (total != 0) {  // true also for NaN
      for (std::int64_t c = 0; c < dim; ++c) o[i * dim + c] /= total;
    }
    store_row(out[i], o + i * dim, dim);
    lse[i] = largest[i] + std::log(total);
  }
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

template <class T>
void backward_block(const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b, std::int64_t h, std::int64_t begin,
                    const BackwardMemory<Real<T>>& memory) {
  using R = Real<T>;
  const std::int64_t dim = plan.head_dim, stride = plan.row_length();
  const std::int64_t rows = std::min(plan.q_block, plan.sq - begin), token = b * plan.sq + begin;
  const R scale = static_cast<R>(op.shape.scale);
  const BlasMatrix<R> q = matrix(Rows<T>(op.q, token, h * dim), rows, dim, memory.q);
  const BlasMatrix<R> go = matrix(Rows<T>(op.go, token, h * dim), rows, dim, memory.go);
  const R* const lse = op.lse.as<R>() + (b * plan.heads + h) * op.lse.row_stride + begin;
  // gQ's memory is not used until the first GEMM adds to it.
  const BlasMatrix<R> o = matrix(Rows<T>(op.o, token, h * dim), rows, dim, memory.gq);
  for (std::int64_t i = 0; i < rows; ++i) memory.delta[i] = dot_row(go.data + i * go.stride, o.data + i * o.stride, dim);
  std::fill_n(memory.gq, rows * dim, R(0));

  const Mask mask(plan, op, b);
  const std::int64_t end = std::min(plan.sk, begin + rows + plan.offset());
  for (std::int64_t first = mask.first_tile(begin, rows); first < end; first += plan.k_block) {
    const std::int64_t width = std::min(plan.k_block, end - first);
    const BlasMatrix<R> k = from_row(memory.k, first), v = from_row(memory.v, first);
    multiply(Product<R>{
        .m = rows, .n = width, .k = dim, .alpha = scale, .a = q, .b = transposed(k), .d = memory.p, .d_stride = stride});
    multiply(Product<R>{.m = rows, .n = width, .k = dim, .a = go, .b = transposed(v), .d = memory.dp, .d_stride = stride});
    for (std::int64_t i = 0; i < rows; ++i) {
      R* const p = memory.p + i * stride;
      R* const dp = memory.dp + i * stride;
      // If all logits of a row are -inf, the row has no gradient, like a query that sees no key.
      const bool empty = std::isinf(lse[i]) && lse[i] < 0;
      const SeenKeys seen = empty ? SeenKeys{0, 0} : mask(begin + i, first, width);
      const R delta = memory.delta[i], shift = lse[i];
      const std::int64_t padded = pad_row(p, seen);
      for (std::int64_t j = 0; j < padded; ++j) {
        p[j] = exp_of(p[j] - shift);
        dp[j] = p[j] * (dp[j] - delta);
      }
      std::fill(p + seen.end, p + width, R(0));
      std::fill(dp, dp + seen.begin, R(0));  // this memory may hold anything
      std::fill(dp + seen.end, dp + width, R(0));
    }
    const BlasMatrix<R> p{memory.p, stride}, ds{memory.dp, stride};
    multiply(Product<R>{
        .m = width, .n = dim, .k = rows, .a = transposed(p), .b = go, .beta = 1, .d = memory.gv + first * dim, .d_stride = dim});
    multiply(
        Product<R>{.m = rows, .n = dim, .k = width, .alpha = scale, .a = ds, .b = k, .beta = 1, .d = memory.gq, .d_stride = dim});
    multiply(Product<R>{.m = width,
                        .n = dim,
                        .k = rows,
                        .alpha = scale,
                        .a = transposed(ds),
                        .b = q,
                        .beta = 1,
                        .d = memory.gk + first * dim,
                        .d_stride = dim});
  }
  const Rows<T> gq(op.gq, token, h * dim);
  for (std::int64_t i = 0; i < rows; ++i) store_row(gq[i], memory.gq + i * dim, dim);
}

template <class T>
void store_kv(const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b, std::int64_t g, const Real<T>* gk,
              const Real<T>* gv) {
  const std::int64_t dim = plan.head_dim;
  const Rows<T> k_out(op.gk, b * plan.sk, g * dim), v_out(op.gv, b * plan.sk, g * dim);
  for (std::int64_t j = 0; j < plan.sk; ++j) {
    store_row(k_out[j], gk + j * dim, dim);
    store_row(v_out[j], gv + j * dim, dim);
  }
}

template <class T>
void backward(const AttentionBackward& op, const AttentionPlan& plan, const AttentionScratch& scratch) {
  using R = Real<T>;
  const std::int64_t dim = plan.head_dim, kv_elements = plan.sk * dim;
  R* const partials = static_cast<R*>(scratch.partials);
  for_each_task(scratch.lanes, plan.backward_tasks(), [&](std::int64_t lane, std::int64_t task) {
    const std::int64_t part = task % plan.parts, g = task / plan.parts % plan.kv_heads, b = task / plan.parts / plan.kv_heads;
    Pieces<R> pieces(static_cast<R*>(scratch.lane) + lane * plan.backward_lane());
    BackwardMemory<R> memory{};
    memory.gq = pieces.take(plan.q_block * dim);
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
    memory.gk = partials ? partials + task * 2 * kv_elements : pieces.take(2 * kv_elements);
    memory.gv = memory.gk + kv_elements;
    memory.k = matrix(Rows<T>(op.k, b * plan.sk, g * dim), plan.sk, dim, k_memory);
    memory.v = matrix(Rows<T>(op.v, b * plan.sk, g * dim), plan.sk, dim, v_memory);
    std::fill_n(memory.gk, 2 * kv_elements, R(0));

    const std::int64_t first_head = g * (plan.heads / plan.kv_heads) + part * plan.heads_per_part();
    for (std::int64_t h = first_head; h < first_head + plan.heads_per_part(); ++h) {
      for (std::int64_t begin = 0; begin < plan.sq; begin += plan.q_block) backward_block<T>(op, plan, b, h, begin, memory);
    }
    if (!partials) store_kv<T>(op, plan, b, g, memory.gk, memory.gv);
  });
  if (!partials) return;
  parallel_for(plan.batch * plan.kv_heads, [&](std::int64_t i) {
    R* const sum = partials + i * plan.parts * 2 * kv_elements;
    for (std::int64_t part = 1; part < plan.parts; ++part) {
      const R* const addend = sum + part * 2 * kv_elements;
      for (std::int64_t j = 0; j < 2 * kv_elements; ++j) sum[j] += addend[j];
    }
    store_kv<T>(op, plan, i / plan.kv_heads, i % plan.kv_heads, sum, sum + kv_elements);
  });
}

}  // namespace

void attention_forward(const AttentionForward& op, const AttentionPlan& plan, const AttentionScratch& scratch) {
  visit_float(op.q.dtype, [&]<class T>() {
    for_each_task(scratch.lanes, plan.forward_tasks(), [&](std::int64_t lane, std::int64_t task) {
      // The last blocks of queries see the most keys. They come first, so that no thread is left with a long task at the end.
      const std::int64_t block = plan.q_blocks() - 1 - task % plan.q_blocks(), head = task / plan.q_blocks();
      const std::int64_t b = head / plan.heads, h = head % plan.heads;
      Real<T>* memory = static_cast<Real<T>*>(scratch.lane) + lane * plan.forward_lane();
      forward_block<T>(op, plan, b, h, block * plan.q_block, memory);
    });
  });
}

void attention_backward(const AttentionBackward& op, const AttentionPlan& plan, const AttentionScratch& scratch) {
  visit_float(op.q.dtype, [&]<class T>() { backward<T>(op, plan, scratch); });
}

}  // namespace octet::kernels::cpu
