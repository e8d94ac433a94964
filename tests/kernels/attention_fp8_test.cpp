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

using kernels::AttentionForwardFp8;
using testing::same_bytes;
using testing::values_of;

constexpr double kU = 0x1p-24;  // unit roundoff of FP32

float to_e4m3(float x) { return decode_fp8(Fp8Format::e4m3, encode_fp8(Fp8Format::e4m3, x)); }

class AttentionFp8Test : public AttentionOps {
 protected:
  struct Codes {
    AttentionForwardFp8 op;
    Tensor scale, amax;  // of O
  };

  Quantized quantized(const Tensor& x, float scale) {
    Quantized q;
    q.rowwise = zeros(DType::f8_e4m3, x.shape);
    q.rowwise_scale_inv = zeros(DType::f32, {1});
    const Tensor factor = filled(DType::f32, {1}, [scale](std::int64_t) { return scale; });
    kernels::quantize(*stream, scratch,
                      {.x = x, .spec = {.source = ScaleSource::history}, .out = q, .scale = factor.as<float>()});
    return q;
  }
  Codes codes(const Operands& x, float q_scale = 90, float k_scale = 100, float v_scale = 110, float o_scale = 120) {
    Codes result;
    result.scale = filled(DType::f32, {1}, [o_scale](std::int64_t) { return o_scale; });
    result.amax = zeros(DType::f32, {1});
    Quantized o;
    o.rowwise = zeros(DType::f8_e4m3, x.o.shape);
    o.rowwise_scale_inv = zeros(DType::f32, {1});
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
      values.push_back(static_cast<double>(decode_fp8(Fp8Format::e4m3, q.rowwise.as_bytes()[i])) * scale_inv);
    return values;
  }
  void expect_formula(const AttentionSizes& sizes, bool documents);
};

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
    return std::vector<Tensor>{c.op.o.out.rowwise, c.op.lse, c.amax};
  });
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

// Every code, both neighbours of every border between two codes, and the border itself, which goes to the even code.
TEST(RoundToE4m3, IsTheValueOfTheNearestCode) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int code = 0; code < 0x7E; ++code) {
    const float value = decode_fp8(Fp8Format::e4m3, static_cast<std::uint8_t>(code));
    const float next = decode_fp8(Fp8Format::e4m3, static_cast<std::uint8_t>(code + 1));
    const float border = (value + next) / 2;
    EXPECT_EQ(kernels::round_to_e4m3(value), value);
    EXPECT_EQ(kernels::round_to_e4m3(std::nextafter(border, 0.0f)), value) << border;
    EXPECT_EQ(kernels::round_to_e4m3(std::nextafter(border, infinity)), next) << border;
    EXPECT_EQ(kernels::round_to_e4m3(border), code % 2 == 0 ? value : next) << border;
  }
  EXPECT_EQ(kernels::round_to_e4m3(448.0f), 448.0f);
  EXPECT_TRUE(std::isnan(kernels::round_to_e4m3(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace octet
