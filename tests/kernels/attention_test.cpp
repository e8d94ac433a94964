#include "octet/kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention_fixture.h"
#include "octet/kernels/attention/attention_plan.h"
#include "support/bounds.h"
#include "support/grad_check.h"
#include "support/near.h"

namespace octet {
namespace {

using Sizes = AttentionSizes;
using testing::gradient_agrees;
using testing::near;
using testing::same_bytes;
using testing::values_of;

double at(const std::vector<double>& x, std::int64_t cols, std::int64_t row, std::int64_t column) {
  return x[static_cast<std::size_t>(row * cols + column)];
}

INSTANTIATE_TEST_SUITE_P(, AttentionTest, ::testing::Values(nullptr, &testing::kEmulatedTiles, &testing::kEmulatedPairs),
                         [](const auto& info) { return testing::name_of(info.param); });

// The whole op with dense matrices, and error bounds for an implementation with roundoff u. A sum of n terms errs by at most (n +
// 2) u times the sum of magnitudes, exp and the division by at most 4 u. P and dS are rounded by at most `rounding` times themselves
// before they are multiplied.
struct Dense {
  std::vector<double> o, lse, gq, gk, gv, o_bound, lse_bound, gq_bound, gk_bound, gv_bound;
};

Dense dense(const AttentionBackward& op, double u, double store, double rounding = 0) {
  const AttentionShape& s = op.shape;
  const std::int64_t dim = s.head_dim, sq = op.q.rows() / s.batch, sk = op.k.rows() / s.batch, group = s.heads / s.kv_heads;
  const std::int64_t q_cols = s.heads * dim, k_cols = s.kv_heads * dim;
  const std::vector<double> q = values_of(op.q), k = values_of(op.k), v = values_of(op.v), go = values_of(op.go);
  Dense out;
  const std::size_t q_size = q.size(), k_size = k.size();
  for (auto* x : {&out.o, &out.gq, &out.o_bound, &out.gq_bound}) x->assign(q_size, 0);
  for (auto* x : {&out.gk, &out.gv, &out.gk_bound, &out.gv_bound}) x->assign(k_size, 0);
  for (auto* x : {&out.lse, &out.lse_bound}) x->assign(static_cast<std::size_t>(s.heads * s.batch * sq), 0);
  const double n_k = static_cast<double>(sk), n_d = static_cast<double>(dim);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < sq; ++i) {
        const std::int64_t qi = b * sq + i, g = h / group;
        const std::int64_t seen = s.visible == Visible::all ? sk : std::clamp<std::int64_t>(i + 1 + sk - sq, 0, sk);
        const std::int64_t document = op.first_keys ? op.first_keys.as<std::int32_t>()[qi] - op.keys_before : 0;
        const std::int64_t behind = s.window > 0 ? i + sk - sq - s.window + 1 : 0;  // first key in the window
        const std::int64_t from = std::clamp<std::int64_t>(std::max(document, behind), 0, seen);
        const auto q_at = [&](std::int64_t c) { return at(q, q_cols, qi, h * dim + c); };
        const auto index = [&](std::int64_t cols, std::int64_t row, std::int64_t column) {
          return static_cast<std::size_t>(row * cols + column);
        };
        std::vector<double> logit(static_cast<std::size_t>(seen - from)), p(logit.size());
        double largest = -std::numeric_limits<double>::infinity(), total = 0, worst = 0;
        for (std::int64_t j = from; j < seen; ++j) {
          double sum = 0, magnitude = 0;
          for (std::int64_t c = 0; c < dim; ++c) {
            const double term = q_at(c) * at(k, k_cols, b * sk + j, g * dim + c) * s.scale;
            sum += term;
            magnitude += std::abs(term);
          }
          logit[static_cast<std::size_t>(j - from)] = sum;
          worst = std::max(worst, (n_d + 3) * u * magnitude);
          largest = std::max(largest, sum);
        }
        for (const double x : logit) total += std::exp(x - largest);
        const double lse = largest + std::log(total);
        const std::size_t l = index(sq, b * s.heads + h, i);
        out.lse[l] = lse;
        // Subtracting the maximum or lse errs by at most u times the larger operand.
        double reach = std::abs(largest);
        for (const double x : logit) reach = std::max(reach, std::abs(x));
        const double p_error = 2 * (worst + 2 * u * (reach + std::abs(lse))) + (n_k + 16) * u;  // relative error of a probability
        out.lse_bound[l] = p_error + 4 * u * std::abs(lse);
        double delta = 0, delta_magnitude = 0, delta_error = 0;
        for (std::int64_t c = 0; c < dim; ++c) {
          double sum = 0, magnitude = 0;
          for (std::int64_t j = from; j < seen; ++j) {
            p[static_cast<std::size_t>(j - from)] = std::exp(logit[static_cast<std::size_t>(j - from)] - lse);
            const double term = p[static_cast<std::size_t>(j - from)] * at(v, k_cols, b * sk + j, g * dim + c);
            sum += term;
            magnitude += std::abs(term);
          }
          const std::size_t at_o = index(q_cols, qi, h * dim + c);
          out.o[at_o] = sum;
          out.o_bound[at_o] = (p_error + (n_k + 4) * u + rounding) * magnitude;
          out.o_bound[at_o] += store * (std::abs(sum) + out.o_bound[at_o]);
          delta_error += out.o_bound[at_o] * std::abs(go[at_o]);
          delta += sum * go[at_o];
          delta_magnitude += magnitude * std::abs(go[at_o]);
        }
        for (std::int64_t j = from; j < seen; ++j) {
          double dp = 0, dp_magnitude = 0;
          for (std::int64_t c = 0; c < dim; ++c) {
            const double term = at(go, q_cols, qi, h * dim + c) * at(v, k_cols, b * sk + j, g * dim + c);
            dp += term;
            dp_magnitude += std::abs(term);
          }
          const double pj = p[static_cast<std::size_t>(j - from)], ds = pj * (dp - delta);
          const double size = dp_magnitude + delta_magnitude;
          // The errors of P, of dP - delta with o as it was stored, of the sums, and of rounding dS.
          const double exact_ds_bound = pj * (size * (2 * p_error + (n_d + n_k + 8) * u) + delta_error);
          const double ds_bound = exact_ds_bound + rounding * (std::abs(ds) + exact_ds_bound);
          const double sums = (static_cast<double>(sq * group) + n_k + 8) * u;
          for (std::int64_t c = 0; c < dim; ++c) {
            const std::size_t kj = index(k_cols, b * sk + j, g * dim + c), qc = index(q_cols, qi, h * dim + c);
            out.gv[kj] += pj * go[qc];
            out.gv_bound[kj] += pj * std::abs(go[qc]) * (p_error + sums + rounding);
            out.gq[qc] += s.scale * ds * k[kj];
            out.gq_bound[qc] += s.scale * std::abs(k[kj]) * (ds_bound + pj * size * sums);
            out.gk[kj] += s.scale * ds * q[qc];
            out.gk_bound[kj] += s.scale * std::abs(q[qc]) * (ds_bound + pj * size * sums);
          }
        }
      }
    }
  }
  for (std::size_t i = 0; i < q_size; ++i) out.gq_bound[i] += store * std::abs(out.gq[i]);
  for (std::size_t i = 0; i < k_size; ++i) {
    out.gk_bound[i] += store * std::abs(out.gk[i]);
    out.gv_bound[i] += store * std::abs(out.gv[i]);
  }
  return out;
}

::testing::AssertionResult within(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound) {
  return near(
      values_of(actual), expected, [&](std::size_t i) { return bound[i] + 1e-30; }, actual.cols());
}

const std::vector<Sizes>& many_sizes() {
  static const std::vector<Sizes> sizes = {
      {.batch = 2, .sq = 5, .sk = 5, .heads = 2, .kv_heads = 2, .dim = 4},
      {.batch = 1, .sq = 1, .sk = 1, .heads = 1, .kv_heads = 1, .dim = 2},
      {.batch = 2, .sq = 130, .sk = 130, .heads = 4, .kv_heads = 2, .dim = 24},  // GQA; the last block is not full
      {.batch = 1, .sq = 70, .sk = 300, .heads = 6, .kv_heads = 1, .dim = 32},   // MQA, more keys than queries, two key blocks
      {.batch = 2, .sq = 1, .sk = 270, .heads = 4, .kv_heads = 4, .dim = 80},    // one new token
      {.batch = 1, .sq = 100, .sk = 30, .heads = 2, .kv_heads = 1, .dim = 6},    // 70 queries see nothing
      {.batch = 1, .sq = 65, .sk = 129, .heads = 12, .kv_heads = 2, .dim = 10},  // backward runs one task for each query head
      {.batch = 2, .sq = 20, .sk = 33, .heads = 8, .kv_heads = 2, .dim = 8},     // ... for every two query heads
      // Windows of one key, of all keys but one, of all keys, of more keys than there are, and across blocks of keys; with as
      // many keys as queries, more, and fewer.
      {.batch = 2, .sq = 9, .sk = 9, .heads = 2, .kv_heads = 1, .dim = 6, .window = 1},
      {.batch = 1, .sq = 40, .sk = 40, .heads = 2, .kv_heads = 2, .dim = 8, .window = 39},
      {.batch = 1, .sq = 40, .sk = 40, .heads = 2, .kv_heads = 2, .dim = 8, .window = 40},
      {.batch = 1, .sq = 40, .sk = 55, .heads = 4, .kv_heads = 2, .dim = 8, .window = 60},
      {.batch = 2, .sq = 600, .sk = 600, .heads = 2, .kv_heads = 1, .dim = 16, .window = 130},
      {.batch = 1, .sq = 70, .sk = 700, .heads = 4, .kv_heads = 2, .dim = 8, .window = 100},
      {.batch = 1, .sq = 50, .sk = 30, .heads = 2, .kv_heads = 1, .dim = 6, .window = 7},
      // Every query sees all keys, with as many keys as queries, more, and fewer.
      {.batch = 2, .sq = 130, .sk = 130, .heads = 4, .kv_heads = 2, .dim = 24, .visible = Visible::all},
      {.batch = 1, .sq = 70, .sk = 300, .heads = 6, .kv_heads = 1, .dim = 32, .visible = Visible::all},
      {.batch = 2, .sq = 100, .sk = 30, .heads = 2, .kv_heads = 1, .dim = 6, .visible = Visible::all},
  };
  return sizes;
}

TEST_P(AttentionTest, AgreesWithDenseMatrices) {
  struct Precision {
    DType dtype;
    double u, store;
  };
  for (const Precision precision :
       {Precision{DType::f64, 0x1p-53, 0}, Precision{DType::f32, 0x1p-24, 0}, Precision{DType::bf16, 0x1p-24, 0x1p-8}}) {
    for (std::size_t i = 0; i < 2 * many_sizes().size(); ++i) {
      const Sizes& sizes = many_sizes()[i / 2];
      Operands x = operands(precision.dtype, sizes);
      const bool documents = i % 2 == 1 && sizes.visible == Visible::causal;
      if (documents) x.first_keys = random_documents(sizes);
      run(x);
      const bool rounds = precision.dtype == DType::bf16 && kernels::cpu::tile_kernel() != nullptr;
      const Dense expected = dense(x.backward(), precision.u, precision.store, rounds ? kUnitRoundoffBf16 : 0);
      const std::string what = concat(name_of(precision.dtype), " ", sizes.text(), documents ? ", documents" : "");
      EXPECT_TRUE(within(x.o, expected.o, expected.o_bound)) << "o, " << what;
      EXPECT_TRUE(within(x.lse, expected.lse, expected.lse_bound)) << "lse, " << what;
      EXPECT_TRUE(within(x.gq, expected.gq, expected.gq_bound)) << "gq, " << what;
      EXPECT_TRUE(within(x.gk, expected.gk, expected.gk_bound)) << "gk, " << what;
      EXPECT_TRUE(within(x.gv, expected.gv, expected.gv_bound)) << "gv, " << what;
      // The bounds are loose. This tighter check would notice a wrong answer.
      if (sizes.sk > 1 && precision.dtype != DType::bf16) {
        EXPECT_LT(testing::relative_frobenius(values_of(x.gq), expected.gq), precision.u * 1e3) << what;
        EXPECT_LT(testing::relative_frobenius(values_of(x.gk), expected.gk), precision.u * 1e3) << what;
      }
    }
  }
}

// Splits the keys in two parts: keys that all queries see, and the queries' own keys. Backward runs on each part with the o and
// lse of both parts, as context_attention.cpp does.
TEST_P(AttentionTest, GradientsOfPartsOfTheKeysAreThoseOfAll) {
  const Sizes sizes{1, 32, 96, 4, 2, 16};
  const Operands whole = operands(DType::f64, sizes);
  run(whole);
  const Dense expected = dense(whole.backward(), 0x1p-53, 0);
  const Tensor gq = zeros(DType::f64, whole.gq.shape);
  for (const bool before : {true, false}) {
    Operands part = whole;
    part.shape.visible = before ? Visible::all : Visible::causal;
    const auto keys = [&](const Tensor& x) { return before ? x.slice_rows(0, 64) : x.slice_rows(64, 96); };
    part.k = keys(whole.k);
    part.v = keys(whole.v);
    part.gq = zeros(DType::f64, whole.gq.shape);
    part.gk = zeros(DType::f64, part.k.shape);
    part.gv = zeros(DType::f64, part.k.shape);
    attention_backward(*stream, scratch, part.backward());
    const auto of_keys = [&](const std::vector<double>& x) {
      const auto middle = x.begin() + 64 * whole.k.cols();
      return before ? std::vector<double>(x.begin(), middle) : std::vector<double>(middle, x.end());
    };
    EXPECT_TRUE(within(part.gk, of_keys(expected.gk), of_keys(expected.gk_bound)));
    EXPECT_TRUE(within(part.gv, of_keys(expected.gv), of_keys(expected.gv_bound)));
    for (std::int64_t i = 0; i < gq.elements(); ++i) gq.as<double>()[i] += part.gq.as<double>()[i];
  }
  EXPECT_TRUE(within(gq, expected.gq, expected.gq_bound)) << "no pair is missing, and none counts twice";
}

TEST_P(AttentionTest, BackwardAgreesWithFiniteDifferences) {
  for (const Sizes& sizes : {Sizes{2, 6, 6, 2, 2, 4}, Sizes{2, 7, 7, 2, 2, 4}, Sizes{1, 66, 66, 4, 2, 6}, Sizes{1, 5, 9, 3, 1, 8},
                             Sizes{2, 9, 6, 2, 1, 4}, Sizes{2, 6, 6, 2, 1, 4, 3}, Sizes{1, 66, 70, 4, 2, 6, 20},
                             Sizes{2, 9, 6, 4, 2, 4, 0, Visible::all}}) {
    Operands x = operands(DType::f64, sizes);
    if (sizes.sq >= 7 && sizes.visible == Visible::causal) x.first_keys = random_documents(sizes);
    run(x);
    const auto loss = [&] {
      attention_forward(*stream, scratch, x.forward());
      double sum = 0;
      for (std::int64_t i = 0; i < x.o.elements(); ++i) sum += x.o.as<double>()[i] * x.go.as<double>()[i];
      return sum;
    };
    const auto check = [&](const std::string& name, const Tensor& of, const Tensor& gradient) {
      EXPECT_TRUE(gradient_agrees({.name = name,
                                   .x = of.as<double>(),
                                   .gradient = gradient.as<double>(),
                                   .count = of.elements(),
                                   .f = loss,
                                   .samples = 60,
                                   .magnitude = static_cast<double>(x.o.elements())}))
          << sizes.text();
    };
    check("q", x.q, x.gq);
    check("k", x.k, x.gk);
    check("v", x.v, x.gv);
  }
}

TEST_P(AttentionTest, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    for (const Sizes& sizes : {Sizes{2, 130, 130, 4, 2, 24}, Sizes{1, 90, 300, 8, 1, 16}, Sizes{1, 300, 300, 4, 1, 16, 70}}) {
      Operands inputs = operands(dtype, sizes);
      if (sizes.sq == 90) inputs.first_keys = random_documents(sizes);
      expect_same_for_any_threads([&] {
        Operands x = inputs;
        for (Tensor* result : {&x.o, &x.lse, &x.gq, &x.gk, &x.gv}) *result = zeros(result->dtype, result->shape);
        run(x);
        return std::vector<Tensor>{x.o, x.lse, x.gq, x.gk, x.gv};
      });
    }
  }
}

// The operands are slices of one [tokens, Q | K | V] tensor, as a fused projection writes it. So are the gradients.
TEST_P(AttentionTest, PackedRows) {
  const Sizes sizes{2, 70, 70, 4, 2, 8};
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Operands x = operands(dtype, sizes);
    run(x);
    const std::int64_t q_cols = x.q.cols(), k_cols = x.k.cols(), width = q_cols + 2 * k_cols;
    Operands packed = x;
    const Tensor qkv = zeros(dtype, {x.q.rows(), width}), gqkv = zeros(dtype, {x.q.rows(), width});
    const auto place = [&](const Tensor& all, std::int64_t first, const Tensor& part) {
      const Tensor slice = all.slice_cols(first, first + part.cols());
      for (std::int64_t r = 0; r < part.rows(); ++r) {
        std::memcpy(slice.slice_rows(r, r + 1).data, part.slice_rows(r, r + 1).data,
                    static_cast<std::size_t>(part.cols()) * size_of(dtype));
      }
      return slice;
    };
    packed.q = place(qkv, 0, x.q);
    packed.k = place(qkv, q_cols, x.k);
    packed.v = place(qkv, q_cols + k_cols, x.v);
    packed.gq = gqkv.slice_cols(0, q_cols);
    packed.gk = gqkv.slice_cols(q_cols, q_cols + k_cols);
    packed.gv = gqkv.slice_cols(q_cols + k_cols, width);
    packed.o = zeros(dtype, x.o.shape);
    run(packed);
    EXPECT_TRUE(same_bytes(packed.o, x.o));
    EXPECT_TRUE(same_bytes(packed.gq, x.gq));
    EXPECT_TRUE(same_bytes(packed.gk, x.gk));
    EXPECT_TRUE(same_bytes(packed.gv, x.gv));
  }
}

// A chunk of a sequence sees the prefix that ends with it. Its output equals the corresponding rows of attention over the whole
// sequence.
TEST_P(AttentionTest, AChunkOnItsPrefixIsTheRowsOfTheWhole) {
  const Sizes sizes{1, 128, 128, 2, 1, 16};
  const Operands whole = operands(DType::f64, sizes);
  run(whole);
  Operands chunk = whole;
  chunk.q = whole.q.slice_rows(64, 96);
  chunk.k = whole.k.slice_rows(0, 96);
  chunk.v = whole.v.slice_rows(0, 96);
  chunk.o = zeros(DType::f64, chunk.q.shape);
  chunk.lse = zeros(DType::f64, {2, 32});
  attention_forward(*stream, scratch, chunk.forward());
  EXPECT_TRUE(near(chunk.o, values_of(whole.o.slice_rows(64, 96)), {.absolute = 1e-14}));
}

// With a window and documents, a chunk needs only the keys that it sees. first_keys counts keys from the beginning of the
// sequence.
TEST_P(AttentionTest, AChunkOnWhatItsWindowShowsIsTheRowsOfTheWhole) {
  const Sizes sizes{1, 128, 128, 2, 1, 16, 30};
  Operands whole = operands(DType::f64, sizes);
  for (const bool documents : {false, true}) {
    if (documents) {
      whole.first_keys = zeros(DType::i32, {128});
      for (std::int64_t i = 0; i < 128; ++i) whole.first_keys.as<std::int32_t>()[i] = i < 70 ? 50 : i < 80 ? 70 : 80;
    }
    run(whole);
    Operands chunk = whole;
    const std::int64_t unseen = kernels::attention_unseen_keys(whole.shape, 32, 96);
    ASSERT_EQ(unseen, 35);  // the first query is 64 and sees keys 35 to 64
    chunk.q = whole.q.slice_rows(64, 96);
    chunk.k = whole.k.slice_rows(unseen, 96);
    chunk.v = whole.v.slice_rows(unseen, 96);
    if (documents) chunk.first_keys = whole.first_keys.slice_rows(64, 96);
    AttentionForward op = chunk.forward();
    op.o = zeros(DType::f64, chunk.q.shape);
    op.lse = zeros(DType::f64, {2, 32});
    op.keys_before = unseen;
    attention_forward(*stream, scratch, op);
    EXPECT_TRUE(near(op.o, values_of(whole.o.slice_rows(64, 96)), {.absolute = 1e-14}));
  }
}

TEST_P(AttentionTest, KeysThatNoQuerySees) {
  const auto unseen = [](std::int64_t window, std::int64_t sq, std::int64_t sk) {
    return kernels::attention_unseen_keys({.window = window}, sq, sk);
  };
  EXPECT_EQ(unseen(0, 4, 1000), 0);
  EXPECT_EQ(unseen(5, 10, 10), 0);
  EXPECT_EQ(unseen(5, 4, 100), 92);  // the first query is 96 and sees keys 92 to 96
  EXPECT_EQ(unseen(96, 4, 100), 1);
  EXPECT_EQ(unseen(97, 4, 100), 0);
  EXPECT_EQ(unseen(500, 4, 100), 0);
}

// Each document gives the same results as a sequence of its own, even if it fills several tiles of keys.
TEST_P(AttentionTest, DocumentsAreAsIfAlone) {
  const std::vector<std::int64_t> bounds = {0, 1, 70, 71, 700, 720};
  const Operands whole = [&] {
    Operands x = operands(DType::f64, {1, 720, 720, 2, 1, 8});
    x.first_keys = zeros(DType::i32, {720});
    for (std::size_t d = 0; d + 1 < bounds.size(); ++d) {
      for (std::int64_t i = bounds[d]; i < bounds[d + 1]; ++i)
        x.first_keys.as<std::int32_t>()[i] = static_cast<std::int32_t>(bounds[d]);
    }
    return x;
  }();
  run(whole);
  for (std::size_t d = 0; d + 1 < bounds.size(); ++d) {
    const auto own = [&](const Tensor& x) { return x.slice_rows(bounds[d], bounds[d + 1]); };
    const std::int64_t tokens = bounds[d + 1] - bounds[d];
    Operands alone = operands(DType::f64, {1, tokens, tokens, 2, 1, 8});
    alone.q = own(whole.q);
    alone.k = own(whole.k);
    alone.v = own(whole.v);
    alone.go = own(whole.go);
    run(alone);
    const Dense bound = dense(alone.backward(), 0x1p-53, 0);  // of one result, hence doubled below
    const auto agree = [&](const Tensor& actual, const Tensor& expected, const std::vector<double>& error) {
      return near(
          values_of(own(actual)), values_of(expected), [&](std::size_t i) { return 2 * error[i] + 1e-30; }, actual.cols());
    };
    EXPECT_TRUE(agree(whole.o, alone.o, bound.o_bound)) << "o of document " << d;
    EXPECT_TRUE(agree(whole.gq, alone.gq, bound.gq_bound)) << "gq of document " << d;
    EXPECT_TRUE(agree(whole.gk, alone.gk, bound.gk_bound)) << "gk of document " << d;
    EXPECT_TRUE(agree(whole.gv, alone.gv, bound.gv_bound)) << "gv of document " << d;
  }
}

TEST_P(AttentionTest, LargeLogitsNeitherOverflowNorVanish) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Sizes sizes{1, 80, 80, 2, 1, 8};
    const Operands x = operands(dtype, sizes);
    // With logits of about 1e4, query i sees practically only key i / 2.
    visit_float(dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < 80; ++i) {
        for (std::int64_t c = 0; c < 16; ++c) x.q.as<T>()[i * 16 + c] = static_cast<T>(static_cast<Real<T>>(0));
        for (std::int64_t c = 0; c < 8; ++c) x.k.as<T>()[i * 8 + c] = static_cast<T>(static_cast<Real<T>>(0));
        x.k.as<T>()[i * 8] = static_cast<T>(static_cast<Real<T>>(std::cos(0.04 * static_cast<double>(i)) * 128));
        x.k.as<T>()[i * 8 + 1] = static_cast<T>(static_cast<Real<T>>(std::sin(0.04 * static_cast<double>(i)) * 128));
        for (std::int64_t h = 0; h < 2; ++h) {
          x.q.as<T>()[i * 16 + h * 8] = static_cast<T>(static_cast<Real<T>>(x.k.as<T>()[i / 2 * 8]));
          x.q.as<T>()[i * 16 + h * 8 + 1] = static_cast<T>(static_cast<Real<T>>(x.k.as<T>()[i / 2 * 8 + 1]));
        }
      }
    });
    run(x);
    const std::vector<double> q = values_of(x.q), k = values_of(x.k), lse = values_of(x.lse);
    EXPECT_GT(lse[79], 5e3);
    for (const Tensor& result : {x.o, x.lse, x.gq, x.gk, x.gv}) {
      for (const double value : values_of(result)) ASSERT_TRUE(std::isfinite(value)) << name_of(dtype);
    }
    if (dtype == DType::f64) {
      const Dense expected = dense(x.backward(), 0x1p-53, 0);
      EXPECT_TRUE(within(x.o, expected.o, expected.o_bound));
      EXPECT_TRUE(within(x.gq, expected.gq, expected.gq_bound));
    }
  }
}

TEST_P(AttentionTest, ARowWithOneKeyIsThatKeysValue) {
  const Sizes sizes{2, 10, 10, 2, 2, 6};
  const Operands x = operands(DType::f32, sizes);
  run(x);
  for (std::int64_t b = 0; b < 2; ++b) {
    EXPECT_TRUE(same_bytes(x.o.slice_rows(b * 10, b * 10 + 1), x.v.slice_rows(b * 10, b * 10 + 1)));
  }
}

TEST_P(AttentionTest, RowsThatSeeNothingAreZeroWithoutGradient) {
  const Sizes sizes{1, 6, 2, 1, 1, 4};
  const Operands x = operands(DType::f32, sizes);
  run(x);
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(values_of(x.lse)[static_cast<std::size_t>(i)], -std::numeric_limits<double>::infinity());
    EXPECT_EQ(values_of(x.o.slice_rows(i, i + 1)), std::vector<double>(4, 0.0));
    EXPECT_EQ(values_of(x.gq.slice_rows(i, i + 1)), std::vector<double>(4, 0.0));
  }
  for (const double value : values_of(x.gk)) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(AttentionTest, NanStaysInItsSequence) {
  const Sizes sizes{2, 40, 40, 2, 2, 4};
  const Operands x = operands(DType::f32, sizes);
  x.k.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  run(x);
  const std::vector<double> o = values_of(x.o), gk = values_of(x.gk);
  EXPECT_TRUE(std::isnan(o[0]));
  for (std::size_t i = 0; i < 40 * 8; ++i) EXPECT_TRUE(std::isfinite(o[40 * 8 + i]) && std::isfinite(gk[40 * 8 + i]));
}

TEST_P(AttentionTest, RefusesShapesThatDisagree) {
  const Operands good = operands(DType::f32, {2, 4, 4, 4, 2, 8});
  const auto refuses = [&](const Operands& x, const std::string& words) {
    try {
      attention_forward(*stream, scratch, x.forward());
      attention_backward(*stream, scratch, x.backward());
      ADD_FAILURE() << "accepted; expected: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  Operands x = good;
  x.shape.heads = 3;
  refuses(x, "3 query heads on 2");
  x = good;
  x.shape.batch = 3;
  refuses(x, "not of 3 sequences");
  x = good;
  x.v = x.v.slice_rows(0, 4);
  refuses(x, "v has shape [4, 16]");
  x = good;
  x.lse = x.lse.slice_rows(0, 2);
  refuses(x, "lse has shape");
  x = good;
  x.gk = zeros(DType::bf16, x.gk.shape);
  refuses(x, "gk is BF16");
  x = good;
  x.shape.window = -1;
  refuses(x, "a window of -1 keys");
  x = good;
  x.first_keys = zeros(DType::i32, {4});
  refuses(x, "first_keys is I32 [4], not I32 [8]");
  x = good;
  x.shape.visible = Visible::all;
  x.shape.window = 3;
  refuses(x, "a window where all keys are visible");
  x.shape.window = 0;
  x.first_keys = zeros(DType::i32, {8});
  refuses(x, "first_keys where all keys are visible");
}

}  // namespace
}  // namespace octet
