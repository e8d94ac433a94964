// Attention from FP8 codes, against the formula of docs/numerics.md in FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention_fixture.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/vector_math.h"
#include "support/near.h"

namespace octet {
namespace {

using kernels::AttentionBackwardFp8;
using kernels::AttentionForwardFp8;
using testing::same_bytes;
using testing::values_of;

constexpr double kU = 0x1p-24;  // unit roundoff of FP32

float rounded(Fp8Format format, float x) { return decode_fp8(format, encode_fp8(format, x)); }
float to_e4m3(float x) { return rounded(Fp8Format::e4m3, x); }

class AttentionFp8Test : public AttentionOps {
 protected:
  struct Codes {
    AttentionForwardFp8 op;
    Tensor scale, amax;  // of O
  };

  Quantized empty(Fp8Format format, const Shape& shape) {
    Quantized q;
    q.format = format;
    q.rowwise = zeros(dtype_of(format), shape);
    q.rowwise_scale_inv = zeros(DType::f32, {1});
    return q;
  }
  Quantized quantized(const Tensor& x, float scale, Fp8Format format = Fp8Format::e4m3) {
    const Quantized q = empty(format, x.shape);
    const Tensor factor = filled(DType::f32, {1}, [scale](std::int64_t) { return scale; });
    kernels::quantize(
        *stream, scratch,
        {.x = x, .spec = {.format = format, .source = ScaleSource::history}, .out = q, .scale = factor.as<float>()});
    return q;
  }
  Codes codes(const Operands& x, float q_scale = 90, float k_scale = 100, float v_scale = 110, float o_scale = 120) {
    Codes result;
    result.scale = filled(DType::f32, {1}, [o_scale](std::int64_t) { return o_scale; });
    result.amax = zeros(DType::f32, {1});
    const Quantized o = empty(Fp8Format::e4m3, x.o.shape);
    result.op = {.shape = x.shape,
                 .q = quantized(x.q, q_scale),
                 .k = quantized(x.k, k_scale),
                 .v = quantized(x.v, v_scale),
                 .first_keys = x.first_keys,
                 .o = {.spec = {.source = ScaleSource::history},
                       .out = o,
                       .scale = result.scale.as<float>(),
                       .amax = result.amax.as<float>()},
                 .lse = zeros(DType::f32, x.lse.shape)};
    return result;
  }
  static std::vector<double> decoded(const Quantized& q) {
    std::vector<double> values;
    const double scale_inv = static_cast<double>(*q.rowwise_scale_inv.as<float>());
    for (std::int64_t i = 0; i < q.rowwise.elements(); ++i)
      values.push_back(static_cast<double>(decode_fp8(q.format, q.rowwise.as_bytes()[i])) * scale_inv);
    return values;
  }

  // How a gradient is cast.
  kernels::QuantizeEpilogue cast_to(const Quantized& out, float scale) {
    return {.spec = {.format = out.format, .source = ScaleSource::history},
            .out = out,
            .scale = filled(DType::f32, {1}, [scale](std::int64_t) { return scale; }).as<float>(),
            .amax = zeros(DType::f32, {1}).as<float>()};
  }
  // The backward pass that follows a forward pass, which has run. Scales use about half of the format's range.
  AttentionBackwardFp8 gradients(const Operands& x, const Codes& forward, Fp8Format format, float ds_factor = 1) {
    const float range = format == Fp8Format::e4m3 ? 1 : 128;
    Quantized ds;
    ds.format = format;
    return {.shape = x.shape,
            .q = forward.op.q,
            .k = forward.op.k,
            .v = forward.op.v,
            .o = forward.op.o.out,
            .go = quantized(x.go, 90 * range, format),
            .first_keys = x.first_keys,
            .lse = forward.op.lse,
            .ds = cast_to(ds, 150 * range * ds_factor),
            .gq = cast_to(empty(format, x.q.shape), 100 * range),
            .gk = cast_to(empty(format, x.k.shape), 50 * range),
            .gv = cast_to(empty(format, x.v.shape), 20 * range)};
  }
  void expect_formula(const AttentionSizes& sizes, bool documents);
  void expect_formula_of_gradients(const AttentionSizes& sizes, bool documents, Fp8Format format);
};

// An interval that holds the exact sum of terms, each of which lies in an interval.
struct IntervalSum {
  double middle = 0, width = 0, magnitude = 0, unrounded = 0;
  // A factor between `low` and `high`, which would be `exact` without rounding, times a known one.
  void add(double low, double high, double exact, double factor) {
    middle += (low + high) / 2 * factor;
    width += (high - low) / 2 * std::abs(factor);
    magnitude += std::max(std::abs(low), std::abs(high)) * std::abs(factor);
    unrounded += exact * factor;
  }
};

// As for O: the code of a gradient lies between those of the ends of an interval, which comes from the error of FP32 sums and
// from probabilities and gradients of scores that FP32 may round to either of two codes. Probabilities are those of the
// log-sum-exp that forward wrote.
void AttentionFp8Test::expect_formula_of_gradients(const AttentionSizes& sizes, bool documents, Fp8Format format) {
  SCOPED_TRACE(concat(sizes.text(), format == Fp8Format::e4m3 ? " E4M3" : " E5M2"));
  Operands x = operands(DType::bf16, sizes);
  if (documents) x.first_keys = random_documents(sizes);
  const Codes forward = codes(x);
  kernels::attention_forward_fp8(*stream, scratch, forward.op);
  const AttentionBackwardFp8 op = gradients(x, forward, format);
  kernels::attention_backward_fp8(*stream, scratch, op);
  const std::vector<double> q = decoded(op.q), k = decoded(op.k), v = decoded(op.v), o = decoded(op.o), go = decoded(op.go),
                            lse = values_of(op.lse);
  const std::int64_t dim = sizes.dim, length = sizes.sq, cols = sizes.heads * dim, kv_cols = sizes.kv_heads * dim;
  std::vector<IntervalSum> gq(q.size()), gk(k.size()), gv(v.size());
  const double ds_scale = static_cast<double>(*op.ds.scale);
  double largest = 0, largest_error = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      for (std::int64_t i = 0; i < length; ++i) {
        const auto at_q = static_cast<std::size_t>((b * length + i) * cols + h * dim);
        std::int64_t from = sizes.window > 0 ? std::max<std::int64_t>(0, i + 1 - sizes.window) : 0;
        if (documents) from = std::max<std::int64_t>(from, x.first_keys.as<std::int32_t>()[b * length + i]);
        double delta = 0, delta_magnitude = 0;
        for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
          delta += go[at_q + d] * o[at_q + d];
          delta_magnitude += std::abs(go[at_q + d] * o[at_q + d]);
        }
        for (std::int64_t j = from; j <= i; ++j) {
          const auto at_k = static_cast<std::size_t>((b * length + j) * kv_cols + h / (sizes.heads / sizes.kv_heads) * dim);
          double logit = 0, logit_magnitude = 0, dp = 0, dp_magnitude = delta_magnitude;
          for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
            logit += q[at_q + d] * k[at_k + d] * x.shape.scale;
            logit_magnitude += std::abs(q[at_q + d] * k[at_k + d]) * x.shape.scale;
            dp += go[at_q + d] * v[at_k + d];
            dp_magnitude += std::abs(go[at_q + d] * v[at_k + d]);
          }
          const double of_lse = lse[static_cast<std::size_t>((b * sizes.heads + h) * length + i)];
          const double p = std::exp(logit - of_lse), sum = static_cast<double>(dim) + 4;
          const double relative = 2 * sum * kU * logit_magnitude + 8 * kU * (1 + std::abs(logit) + std::abs(of_lse));
          const double ds = x.shape.scale * p * (dp - delta);
          const double error = x.shape.scale * p * (2 * sum * kU * dp_magnitude) + std::abs(ds) * (relative + 8 * kU);
          largest = std::max(largest, std::abs(ds));
          largest_error = std::max(largest_error, error);
          const auto of_p = [&](double value) { return to_e4m3(static_cast<float>(256 * value)) / 256.0; };
          const auto of_ds = [&](double value) {
            return static_cast<double>(rounded(format, static_cast<float>(value * ds_scale))) / ds_scale;
          };
          const double p_low = of_p(p * (1 - relative)), p_high = of_p(p * (1 + relative));
          const double ds_low = of_ds(ds - error), ds_high = of_ds(ds + error);
          for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
            gv[at_k + d].add(p_low, p_high, p, go[at_q + d]);
            gq[at_q + d].add(ds_low, ds_high, ds, k[at_k + d]);
            gk[at_k + d].add(ds_low, ds_high, ds, q[at_q + d]);
          }
        }
      }
    }
  }
  const auto expect = [&](const kernels::QuantizeEpilogue& actual, const std::vector<IntervalSum>& sums, const char* name) {
    const double terms = static_cast<double>(length * sizes.heads) + 8;
    const auto code_of = [&](double value) {
      return rounded(format, static_cast<float>(BFloat16(static_cast<float>(value))) * *actual.scale);
    };
    double least = 0, most = 0;  // of the amax
    std::size_t differ = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const double width = sums[i].width + terms * kU * sums[i].magnitude;
      const float code = decode_fp8(format, actual.out.rowwise.as_bytes()[i]);
      ASSERT_GE(code, code_of(sums[i].middle - width)) << name << " " << i << ", " << sums[i].middle << " ± " << width;
      ASSERT_LE(code, code_of(sums[i].middle + width)) << name << " " << i << ", " << sums[i].middle << " ± " << width;
      differ += code != code_of(sums[i].unrounded);
      least = std::max(least, std::abs(sums[i].middle) - width);
      most = std::max(most, std::abs(sums[i].middle) + width);
    }
    // Many codes are others than those of probabilities and gradients of scores that are not rounded.
    if (sizes.sq > 50) {
      EXPECT_GT(differ, sums.size() / 50) << name;
    }
    // Before the cast, rounded to BF16.
    EXPECT_GE(*actual.amax, least * (1 - 0x1p-8)) << name;
    EXPECT_LE(*actual.amax, most * (1 + 0x1p-8)) << name;
    EXPECT_EQ(*actual.out.rowwise_scale_inv.as<float>(), 1 / *actual.scale) << name;
  };
  expect(op.gq, gq, "gq");
  expect(op.gk, gk, "gk");
  expect(op.gv, gv, "gv");
  EXPECT_NEAR(*op.ds.amax, largest, largest_error);
}

TEST_F(AttentionFp8Test, GradientsAreThoseOfTheFormula) {
  for (const Fp8Format format : {Fp8Format::e5m2, Fp8Format::e4m3}) {
    expect_formula_of_gradients({.batch = 2, .sq = 5, .sk = 5, .heads = 2, .kv_heads = 2, .dim = 16}, false, format);
    expect_formula_of_gradients({.batch = 2, .sq = 130, .sk = 130, .heads = 4, .kv_heads = 2, .dim = 16}, false, format);
    expect_formula_of_gradients({.batch = 1, .sq = 300, .sk = 300, .heads = 3, .kv_heads = 1, .dim = 32}, false, format);
    expect_formula_of_gradients({.batch = 2, .sq = 80, .sk = 80, .heads = 2, .kv_heads = 1, .dim = 24, .window = 9}, false,
                                format);
    expect_formula_of_gradients({.batch = 2, .sq = 90, .sk = 90, .heads = 2, .kv_heads = 1, .dim = 16}, true, format);
  }
}

// The amax of dS is that before its cast, whatever its scale, and the largest over all calls.
TEST_F(AttentionFp8Test, TheAmaxOfScoreGradientsDoesNotDependOnTheirScale) {
  const Operands x = operands(DType::bf16, {.batch = 1, .sq = 40, .sk = 40, .heads = 2, .kv_heads = 1, .dim = 16});
  const Codes forward = codes(x);
  kernels::attention_forward_fp8(*stream, scratch, forward.op);
  const AttentionBackwardFp8 fits = gradients(x, forward, Fp8Format::e5m2),
                             flushes = gradients(x, forward, Fp8Format::e5m2, 0x1p-60f),
                             saturates = gradients(x, forward, Fp8Format::e5m2, 0x1p20f);
  for (const AttentionBackwardFp8* op : {&fits, &flushes, &saturates}) {
    kernels::attention_backward_fp8(*stream, scratch, *op);
    EXPECT_EQ(*op->ds.amax, *fits.ds.amax);
  }
  EXPECT_EQ(*flushes.gq.amax, 0) << "no code of dS is left";
  EXPECT_GT(*fits.gq.amax, 0);
  *fits.ds.amax = 1000;
  kernels::attention_backward_fp8(*stream, scratch, fits);
  EXPECT_EQ(*fits.ds.amax, 1000);
}

// The code of O lies between those of the ends of O's interval. The interval comes from the error of FP32 sums, and from
// probabilities so near to the border between two codes that FP32 may round them to either one. It is much narrower than a code,
// so an implementation that does not round probabilities, or rounds others, fails.
void AttentionFp8Test::expect_formula(const AttentionSizes& sizes, bool documents) {
  SCOPED_TRACE(sizes.text());
  Operands x = operands(DType::bf16, sizes);
  if (documents) x.first_keys = random_documents(sizes);
  const Codes c = codes(x);
  kernels::attention_forward_fp8(*stream, scratch, c.op);
  const std::vector<double> q = decoded(c.op.q), k = decoded(c.op.k), v = decoded(c.op.v), lse = values_of(c.op.lse);
  const std::int64_t dim = sizes.dim, length = sizes.sq, cols = sizes.heads * dim, kv_cols = sizes.kv_heads * dim;
  constexpr std::int64_t kTile = 256;  // keys between which the largest logit is taken anew
  std::int64_t differ = 0;
  double largest_o = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      const std::int64_t g = h / (sizes.heads / sizes.kv_heads);
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t row = b * length + i;
        std::int64_t from = sizes.window > 0 ? std::max<std::int64_t>(0, i + 1 - sizes.window) : 0;
        if (documents) from = std::max<std::int64_t>(from, x.first_keys.as<std::int32_t>()[row]);
        std::vector<double> sum(static_cast<std::size_t>(dim)), error(sum.size()), unrounded(sum.size());
        double total = 0, highest = -std::numeric_limits<double>::infinity(), relative = 0;
        for (std::int64_t tile = from / kTile * kTile; tile <= i; tile += kTile) {
          std::vector<double> logits;
          double shift = highest;
          for (std::int64_t j = std::max(tile, from); j <= std::min(i, tile + kTile - 1); ++j) {
            double logit = 0, magnitude = 0;
            for (std::int64_t d = 0; d < dim; ++d) {
              const double term = q[static_cast<std::size_t>(row * cols + h * dim + d)] *
                                  k[static_cast<std::size_t>((b * length + j) * kv_cols + g * dim + d)] * x.shape.scale;
              logit += term;
              magnitude += std::abs(term);
            }
            logits.push_back(logit);
            shift = std::max(shift, logit);
            // The error of a logit, of the largest one, of their difference and of exp.
            relative = std::max(relative, 2 * (static_cast<double>(dim) + 4) * kU * magnitude + 8 * kU * (1 + std::abs(logit)));
          }
          const double correction = std::exp(highest - shift);
          total *= correction;
          for (std::size_t d = 0; d < sum.size(); ++d) sum[d] *= correction, error[d] *= correction, unrounded[d] *= correction;
          highest = shift;
          for (std::size_t n = 0; n < logits.size(); ++n) {
            const std::int64_t j = std::max(tile, from) + static_cast<std::int64_t>(n);
            const double p = std::exp(logits[n] - shift);
            const double below = to_e4m3(static_cast<float>(256 * p * (1 - relative))) / 256.0;
            const double above = to_e4m3(static_cast<float>(std::min(256.0, 256 * p * (1 + relative)))) / 256.0;
            total += p;
            for (std::int64_t d = 0; d < dim; ++d) {
              const double value = v[static_cast<std::size_t>((b * length + j) * kv_cols + g * dim + d)];
              sum[static_cast<std::size_t>(d)] += (below + above) / 2 * value;
              unrounded[static_cast<std::size_t>(d)] += p * value;
              error[static_cast<std::size_t>(d)] +=
                  std::abs(value) * ((above - below) / 2 + (below + above) * (static_cast<double>(i - from) + 8) * kU);
            }
          }
        }
        const bool empty = from > i;
        const double expected_lse = empty ? -std::numeric_limits<double>::infinity() : highest + std::log(total);
        const double actual_lse = lse[static_cast<std::size_t>((b * sizes.heads + h) * length + i)];
        if (empty) {
          EXPECT_EQ(actual_lse, expected_lse);
        } else {
          EXPECT_NEAR(actual_lse, expected_lse,
                      relative + (static_cast<double>(i - from) + 8) * kU + 4 * kU * std::abs(expected_lse));
        }
        for (std::int64_t d = 0; d < dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          const double exact = empty ? 0 : sum[at] / total,
                       width = empty ? 0 : error[at] / total + std::abs(exact) * 4 * relative;
          const auto code_of = [](double o) { return to_e4m3(static_cast<float>(BFloat16(static_cast<float>(o))) * 120.0f); };
          const float actual = decode_fp8(Fp8Format::e4m3, c.op.o.out.rowwise.as_bytes()[row * cols + h * dim + d]);
          ASSERT_GE(actual, code_of(exact - width)) << "query " << i << ", head " << h << ", dim " << d << ", o " << exact;
          ASSERT_LE(actual, code_of(exact + width)) << "query " << i << ", head " << h << ", dim " << d << ", o " << exact;
          differ += !empty && actual != code_of(unrounded[at] / total);
          largest_o = std::max(largest_o, std::abs(exact));
        }
      }
    }
  }
  // With several keys many codes are others than those of probabilities that are not rounded.
  if (sizes.sq > 50) {
    EXPECT_GT(differ, x.o.elements() / 50);
  }
  EXPECT_NEAR(*c.amax.as<float>(), largest_o, 0x1p-7 * largest_o) << "before the cast, rounded to BF16";
  EXPECT_EQ(*c.op.o.out.rowwise_scale_inv.as<float>(), 1.0f / 120.0f);
}

TEST_F(AttentionFp8Test, CodesAreThoseOfTheFormula) {
  expect_formula({.batch = 2, .sq = 5, .sk = 5, .heads = 2, .kv_heads = 2, .dim = 16}, false);
  expect_formula({.batch = 2, .sq = 130, .sk = 130, .heads = 4, .kv_heads = 2, .dim = 16}, false);
  expect_formula({.batch = 1, .sq = 300, .sk = 300, .heads = 3, .kv_heads = 1, .dim = 32}, false);  // two tiles of keys
  expect_formula({.batch = 2, .sq = 80, .sk = 80, .heads = 2, .kv_heads = 1, .dim = 24, .window = 9}, false);
  expect_formula({.batch = 2, .sq = 90, .sk = 90, .heads = 2, .kv_heads = 1, .dim = 16}, true);
}

TEST_F(AttentionFp8Test, OSaturatesAndItsAmaxIsTheTrueOne) {
  const Operands x = operands(DType::bf16, {.batch = 1, .sq = 40, .sk = 40, .heads = 2, .kv_heads = 1, .dim = 16});
  const Codes fits = codes(x), saturates = codes(x, 90, 100, 110, 4000);
  kernels::attention_forward_fp8(*stream, scratch, fits.op);
  kernels::attention_forward_fp8(*stream, scratch, saturates.op);
  EXPECT_EQ(*saturates.amax.as<float>(), *fits.amax.as<float>());
  std::uint8_t largest = 0;
  for (std::int64_t i = 0; i < x.o.elements(); ++i)
    largest = std::max<std::uint8_t>(largest, saturates.op.o.out.rowwise.as_bytes()[i] & 0x7Fu);
  EXPECT_EQ(largest, 0x7E);
  *fits.amax.as<float>() = 1000;
  kernels::attention_forward_fp8(*stream, scratch, fits.op);
  EXPECT_EQ(*fits.amax.as<float>(), 1000) << "the maximum over micro-batches";
}

TEST_F(AttentionFp8Test, GivesTheSameBitsForAnyNumberOfThreads) {
  const Operands x = operands(DType::bf16, {.batch = 2, .sq = 200, .sk = 200, .heads = 4, .kv_heads = 2, .dim = 16});
  expect_same_for_any_threads([&] {
    const Codes c = codes(x);
    kernels::attention_forward_fp8(*stream, scratch, c.op);
    const AttentionBackwardFp8 g = gradients(x, c, Fp8Format::e5m2);
    kernels::attention_backward_fp8(*stream, scratch, g);
    const Tensor ds_amax = filled(DType::f32, {1}, [&](std::int64_t) { return *g.ds.amax; });
    return std::vector<Tensor>{c.op.o.out.rowwise, c.op.lse,         c.amax, g.gq.out.rowwise,
                               g.gk.out.rowwise,   g.gv.out.rowwise, ds_amax};
  });
}

TEST_F(AttentionFp8Test, BackwardRefusesOnCudaWhatCudnnDoesNotServe) {
  const auto refuses = [&](std::int64_t dim, bool deterministic, const std::string& text) {
    const auto target = make_meta_device(DeviceKind::cuda);
    const auto on = target->make_stream();
    Arena memory{*target, MemoryCategory::workspace, 0};
    Operands x = operands(DType::bf16, {.batch = 1, .sq = 8, .sk = 8, .heads = 1, .kv_heads = 1, .dim = dim});
    x.shape.deterministic = deterministic;
    const AttentionBackwardFp8 op = gradients(x, codes(x), Fp8Format::e5m2);
    if (text.empty()) return kernels::attention_backward_fp8(*on, memory, op);
    expect_refusal([&] { kernels::attention_backward_fp8(*on, memory, op); }, text);
  };
  refuses(64, false, "head_dim = 64, and backward in FP8 needs 128");
  refuses(128, true, "run.deterministic = true");
  refuses(128, false, "");
}

TEST_F(AttentionFp8Test, RefusesOnCudaWhatCudnnDoesNotServe) {
  const auto refuses = [&](const AttentionSizes& sizes, bool documents, const std::string& text) {
    const auto target = make_meta_device(DeviceKind::cuda);
    const auto on = target->make_stream();
    Arena memory{*target, MemoryCategory::workspace, 0};
    Operands x = operands(DType::bf16, sizes);
    if (documents) x.first_keys = random_documents(sizes);
    Codes c = codes(x);
    c.op.documents = documents ? 4 : 0;
    if (text.empty()) return kernels::attention_forward_fp8(*on, memory, c.op);
    expect_refusal([&] { kernels::attention_forward_fp8(*on, memory, c.op); }, text);
  };
  refuses({.batch = 1, .sq = 8, .sk = 8, .heads = 1, .kv_heads = 1, .dim = 24}, false, "head_dim = 24 is not a multiple of 16");
  refuses({.batch = 1, .sq = 8, .sk = 8, .heads = 1, .kv_heads = 1, .dim = 272}, false, "head_dim = 272");
  refuses({.batch = 1, .sq = 8, .sk = 8, .heads = 1, .kv_heads = 1, .dim = 16, .window = 5}, false, "a window of 5 tokens");
  refuses({.batch = 1, .sq = 8, .sk = 8, .heads = 1, .kv_heads = 1, .dim = 16}, true, "data.document_mask");
  refuses({.batch = 1, .sq = 8, .sk = 8, .heads = 1, .kv_heads = 1, .dim = 16, .window = 8}, false, "");
}

TEST_F(AttentionFp8Test, RefusesUnequalLengths) {
  const Operands x = operands(DType::bf16, {.batch = 1, .sq = 4, .sk = 8, .heads = 1, .kv_heads = 1, .dim = 16});
  expect_refusal([&] { kernels::attention_forward_fp8(*stream, scratch, codes(x).op); }, "4 queries on 8 keys");
}

// Every code of both formats, with scales whose products with the codes are not BF16 numbers.
TEST_F(AttentionFp8Test, DecodesEveryCode) {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const float scale_inv : {1.0f, 0.3f, 1e-30f, 3e38f}) {
      Quantized q{.format = format, .rowwise = zeros(dtype_of(format), {2, 128})};
      q.rowwise_scale_inv = filled(DType::f32, {1}, [&](std::int64_t) { return scale_inv; });
      for (std::size_t i = 0; i < 256; ++i) q.rowwise.as_bytes()[i] = static_cast<std::uint8_t>(i);
      const Tensor y = zeros(DType::bf16, {2, 128});
      kernels::decode_codes(*stream, {.q = q, .y = y});
      const Tensor expected = filled(DType::bf16, {2, 128}, [&](std::int64_t i) {
        return static_cast<double>(decode_fp8(format, static_cast<std::uint8_t>(i)) * scale_inv);
      });
      EXPECT_TRUE(same_bytes(y, expected)) << scale_inv;
    }
  }
}

// Every code of both signs, both neighbours of every border between two codes, and the border itself, which goes to the even
// code.
template <Fp8Format kFormat>
void expect_the_values_of_nearest_codes() {
  const float infinity = std::numeric_limits<float>::infinity();
  const int largest = kFormat == Fp8Format::e4m3 ? 0x7E : 0x7B;
  for (const float sign : {1.0f, -1.0f}) {
    const auto expect = [&](float x, float value) {
      const float result = kernels::round_to_fp8<kFormat>(sign * x);
      EXPECT_EQ(result, sign * value) << sign * x;
      EXPECT_EQ(std::signbit(result), sign < 0) << sign * x;
    };
    for (int code = 0; code < largest; ++code) {
      const float value = decode_fp8(kFormat, static_cast<std::uint8_t>(code));
      const float next = decode_fp8(kFormat, static_cast<std::uint8_t>(code + 1));
      const float border = (value + next) / 2;
      expect(value, value);
      expect(std::nextafter(border, 0.0f), value);
      expect(std::nextafter(border, infinity), next);
      expect(border, code % 2 == 0 ? value : next);
    }
    const float most = decode_fp8(kFormat, static_cast<std::uint8_t>(largest));
    for (const float x : {most, 2 * most, std::numeric_limits<float>::max(), infinity}) expect(x, most);
    expect(1e-40f, 0);
  }
  for (const std::uint32_t bits : {0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u})
    EXPECT_TRUE(std::isnan(kernels::round_to_fp8<kFormat>(std::bit_cast<float>(bits))));
}

TEST(RoundToFp8, IsTheValueOfTheNearestCode) {
  expect_the_values_of_nearest_codes<Fp8Format::e4m3>();
  expect_the_values_of_nearest_codes<Fp8Format::e5m2>();
}

}  // namespace
}  // namespace octet
