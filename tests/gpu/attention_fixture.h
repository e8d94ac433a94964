// Shared by the tests of attention on a GPU: the operands on both sides and how far the results may differ.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gpu/twins.h"
#include "octet/kernels/attention/attention.h"
#include "octet/kernels/attention/attention_workspace.h"
#include "support/bounds.h"

namespace octet::testing {

using kernels::AttentionBackward;
using kernels::AttentionForward;
using kernels::AttentionShape;
using kernels::Visible;

struct AttentionSizes {
  std::int64_t batch, heads, kv_heads, sq, sk, dim;
  bool deterministic = false;
  std::int64_t window = 0;
  Visible visible = Visible::causal;

  std::string text() const {
    return concat("batch ", batch, " heads ", heads, "/", kv_heads, " tokens ", sq, "/", sk, " dim ", dim,
                  deterministic ? " deterministic" : "", " window ", window, visible == Visible::all ? " all" : "");
  }
  AttentionShape shape() const {
    return {.batch = batch,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = dim,
            .scale = 1 / std::sqrt(static_cast<double>(dim)),
            .window = window,
            .visible = visible,
            .deterministic = deterministic};
  }
};

inline Twin columns(const Twin& t, std::int64_t begin, std::int64_t end) {
  return {t.cpu.slice_cols(begin, end), t.gpu.slice_cols(begin, end)};
}

// Returns the largest norm of `dim` adjacent elements, which are one head of a row.
inline double largest_norm(const std::vector<double>& x, std::int64_t dim) {
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(dim)) {
    double sum = 0;
    for (std::size_t c = i; c < i + static_cast<std::size_t>(dim); ++c) sum += x[c] * x[c];
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

// Returns twice the distance that `roundings` independent roundings to BF16 cause. Each rounding moves a result by a random
// share, because the terms of the sums have random signs. product_noise() has the same factor of two.
inline double bf16_noise(int roundings) { return 2 * std::sqrt(roundings) * rounding_noise(kUnitRoundoffBf16).high; }

class AttentionGpuTest : public TwinTest {
 protected:
  struct Operands {
    AttentionSizes sizes;
    Twin q, k, v, first_keys, o, lse, go, gq, gk, gv;
    std::int64_t keys_before = 0, documents = 0;

    AttentionForward forward(Tensor Twin::*side) const {
      return {.shape = sizes.shape(),
              .q = q.*side,
              .k = k.*side,
              .v = v.*side,
              .first_keys = first_keys.*side,
              .keys_before = keys_before,
              .documents = documents,
              .o = o.*side,
              .lse = lse.*side};
    }
    AttentionBackward backward(Tensor Twin::*side) const {
      return {.shape = sizes.shape(),
              .q = q.*side,
              .k = k.*side,
              .v = v.*side,
              .first_keys = first_keys.*side,
              .keys_before = keys_before,
              .documents = documents,
              .o = o.*side,
              .lse = lse.*side,
              .go = go.*side,
              .gq = gq.*side,
              .gk = gk.*side,
              .gv = gv.*side};
    }
  };

  // Q, K and V are slices of one matrix, as a fused projection writes them. If the lengths differ, Q is a matrix of its own.
  Operands operands(const AttentionSizes& s) {
    const std::int64_t q = s.heads * s.dim, kv = s.kv_heads * s.dim, apart = s.sq == s.sk ? q : 0;
    Operands x;
    x.sizes = s;
    const Shape packed{s.batch * s.sk, apart + 2 * kv}, of_q{s.batch * s.sq, q};
    const Twin in = random(DType::bf16, packed), gradient = poisoned(DType::bf16, packed);
    x.q = apart ? columns(in, 0, q) : random(DType::bf16, of_q);
    x.gq = apart ? columns(gradient, 0, q) : poisoned(DType::bf16, of_q);
    x.k = columns(in, apart, apart + kv);
    x.gk = columns(gradient, apart, apart + kv);
    x.v = columns(in, apart + kv, apart + 2 * kv);
    x.gv = columns(gradient, apart + kv, apart + 2 * kv);
    x.go = random(DType::bf16, of_q);
    x.o = poisoned(DType::bf16, of_q);
    x.lse = poisoned(DType::f32, {s.batch * s.heads, s.sq});
    return x;
  }

  // Begins documents at these keys of x.k, in every sequence one key later than in the sequence before. Keys before the first of
  // them belong to a document that began before x.k. The call is told twice the number of documents.
  void give_documents(Operands& x, const std::vector<std::int64_t>& begins, std::int64_t keys_before = 0) {
    const AttentionSizes& s = x.sizes;
    x.keys_before = keys_before;
    x.documents = 2 * s.batch * static_cast<std::int64_t>(begins.size() + 1);
    x.first_keys = zeros(DType::i32, {s.batch * s.sq});
    for (std::int64_t i = 0; i < s.batch * s.sq; ++i) {
      const std::int64_t b = i / s.sq, own = i % s.sq + s.sk - s.sq;
      std::int64_t first = -keys_before;
      for (const std::int64_t begin : begins) first = begin + b <= own ? begin + b : first;
      x.first_keys.cpu.as<std::int32_t>()[i] = static_cast<std::int32_t>(keys_before + first);
    }
    upload(x.first_keys);
  }

  void run_cpu(const Operands& x) {
    attention_forward(*cpu_stream, cpu_scratch, x.forward(&Twin::cpu));
    attention_backward(*cpu_stream, cpu_scratch, x.backward(&Twin::cpu));
  }
  void run_gpu(const Operands& x) {
    attention_forward(*gpu_stream, gpu_scratch, x.forward(&Twin::gpu));
    attention_backward(*gpu_stream, gpu_scratch, x.backward(&Twin::gpu));
  }

  std::vector<double> on_gpu(const Twin& t) { return values_of(fetch(t.gpu).view()); }
  // Returns the GPU's lse in the CPU's order [B, H, Sq]. With documents the GPU stores [B Sq, H].
  std::vector<double> lse_on_gpu(const Operands& x) {
    const AttentionSizes& s = x.sizes;
    const std::vector<double> stored = on_gpu(x.lse);
    if (!x.first_keys.gpu) return stored;
    std::vector<double> result;
    for (std::int64_t row = 0; row < s.batch * s.heads; ++row) {
      for (std::int64_t i = 0; i < s.sq; ++i) {
        const std::int64_t at = (row / s.heads * s.sq + i) * s.heads + row % s.heads;
        result.push_back(stored[static_cast<std::size_t>(at)]);
      }
    }
    return result;
  }

  void expect_agreement(const Operands& x) {
    const AttentionSizes& sizes = x.sizes;
    SCOPED_TRACE(sizes.text() + (x.first_keys.cpu ? " documents" : ""));
    run_cpu(x);
    run_gpu(x);
    // A logit has the error of a dot product whose terms add up to at most |q| |k|. The error of the sum of exponentials grows
    // with its length and includes those of exp and log.
    const double reach = largest_norm(values_of(x.q.cpu), sizes.dim) * largest_norm(values_of(x.k.cpu), sizes.dim);
    const double logit_error = dot_error_bound(sizes.dim, reach * sizes.shape().scale, 3);
    const double sum_error = gamma(static_cast<double>(sizes.sk + 64), kUnitRoundoffF32);
    EXPECT_TRUE(near(lse_on_gpu(x), values_of(x.lse.cpu),
                     {.absolute = 2 * (logit_error + sum_error), .relative = gamma(8, kUnitRoundoffF32)}))
        << "lse";
    // Three roundings: P, and o on both sides.
    EXPECT_TRUE(near_norm(on_gpu(x.o), values_of(x.o.cpu), bf16_noise(3))) << "o";
    // Three roundings on each side: P or dS, the stored o or a head's share before the sum over its group, and the result.
    EXPECT_TRUE(near_norm(on_gpu(x.gq), values_of(x.gq.cpu), bf16_noise(6))) << "gq";
    EXPECT_TRUE(near_norm(on_gpu(x.gk), values_of(x.gk.cpu), bf16_noise(6))) << "gk";
    EXPECT_TRUE(near_norm(on_gpu(x.gv), values_of(x.gv.cpu), bf16_noise(6))) << "gv";
  }
  void expect_agreement(AttentionSizes sizes) {
    for (const bool deterministic : {false, true}) {
      sizes.deterministic = deterministic;
      expect_agreement(operands(sizes));
    }
  }
};

}  // namespace octet::testing
