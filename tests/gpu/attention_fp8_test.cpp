// Attention on FP8 codes with cuDNN, against the CPU.
#include <cstring>
#include <limits>

#include "gpu/attention_fixture.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::testing {
namespace {

class AttentionFp8GpuTest : public AttentionGpuTest {
 protected:
  struct CodesTwin {
    Fp8Format format;
    Twin codes, scale_inv;
    Quantized side(Tensor Twin::*of) const {
      Quantized q;
      q.format = format;
      q.rowwise = codes.*of;
      q.rowwise_scale_inv = scale_inv.*of;
      return q;
    }
  };

  CodesTwin codes(const Shape& shape, Fp8Format format = Fp8Format::e4m3) {
    return {format, poisoned(dtype_of(format), shape), poisoned(DType::f32, {1})};
  }
  // Casts both sides, which gives the same bytes.
  CodesTwin cast(const Twin& x, double scale, Fp8Format format = Fp8Format::e4m3) {
    const CodesTwin result = codes(x.cpu.shape, format);
    const Twin factor = filled(DType::f32, {1}, [scale](std::int64_t) { return scale; });
    const auto on = [&](Stream& stream, Arena& scratch, Tensor Twin::*of) {
      kernels::quantize(stream, scratch,
                        {.x = x.*of,
                         .spec = {.format = format, .source = ScaleSource::history},
                         .out = result.side(of),
                         .scale = static_cast<const float*>((factor.*of).data)});
    };
    on(*cpu_stream, cpu_scratch, &Twin::cpu);
    on(*gpu_stream, gpu_scratch, &Twin::gpu);
    expect_same_bytes(result.codes, "codes");
    return result;
  }
  static std::vector<double> decoded(const Tensor& codes, Fp8Format format = Fp8Format::e4m3) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < codes.elements(); ++i)
      values.push_back(static_cast<double>(decode_fp8(format, codes.as_bytes()[i])));
    return values;
  }

  void expect_fp8_agreement(const AttentionSizes& s) {
    SCOPED_TRACE(s.text());
    const Shape of_q{s.batch * s.sq, s.heads * s.dim}, of_k{s.batch * s.sk, s.kv_heads * s.dim};
    const CodesTwin q = cast(random(DType::bf16, of_q), 90), k = cast(random(DType::bf16, of_k), 100),
                    v = cast(random(DType::bf16, of_k), 110), o = codes(of_q);
    const Twin lse = poisoned(DType::f32, {s.batch * s.heads, s.sq}), amax = zeros(DType::f32, {1});
    const Twin o_scale = filled(DType::f32, {1}, [](std::int64_t) { return 100; });
    const auto on = [&](Stream& stream, Arena& scratch, Tensor Twin::*of) {
      kernels::attention_forward_fp8(stream, scratch,
                                     {.shape = s.shape(),
                                      .q = q.side(of),
                                      .k = k.side(of),
                                      .v = v.side(of),
                                      .first_keys = {},
                                      .o = {.spec = {.source = ScaleSource::history},
                                            .out = o.side(of),
                                            .scale = static_cast<const float*>((o_scale.*of).data),
                                            .amax = static_cast<float*>((amax.*of).data)},
                                      .lse = lse.*of});
    };
    on(*cpu_stream, cpu_scratch, &Twin::cpu);
    on(*gpu_stream, gpu_scratch, &Twin::gpu);
    // Both sides multiply the same codes. Tensor cores align groups of 32 products to 13 bits behind the largest one (as in
    // gemm_test.cpp), so each group errs by at most 33 x 2^-13 of the magnitudes, which are at most |q| |k|.
    const double reach =
        largest_norm(decoded(q.codes.cpu), s.dim) / 90 * largest_norm(decoded(k.codes.cpu), s.dim) / 100 * s.shape().scale;
    const double logit_error = static_cast<double>((s.dim + 31) / 32) * 33 * 0x1p-13 * reach;
    const double sum_error = gamma(static_cast<double>(s.sk + 64), kUnitRoundoffF32);
    EXPECT_TRUE(
        near(on_gpu(lse), values_of(lse.cpu), {.absolute = logit_error + 2 * sum_error, .relative = gamma(8, kUnitRoundoffF32)}))
        << "lse";
    // Four roundings to E4M3, which are independent because the tiles of keys differ: P and O on each side. The values of V have
    // random signs, so that each moves O by its own relative noise.
    const double noise = rounding_noise(0x1p-4).high;
    EXPECT_TRUE(near_norm(decoded(fetch(o.codes.gpu).view()), decoded(o.codes.cpu), 2 * std::sqrt(4.0) * noise)) << "o";
    // The amax is that of O before its cast: only P is rounded, each probability by at most 2^-4 of itself.
    const float on_cpu = *amax.cpu.as<float>(), actual = fetch(amax.gpu).view().as<float>()[0];
    EXPECT_NEAR(actual, on_cpu, 2 * 0x1p-4 * largest_norm(decoded(v.codes.cpu), 1) / 110) << "amax of o";
    expect_same_bytes(o.scale_inv, "scale_inv of o");
    // A larger amax of the same step stays.
    const Twin larger = filled(DType::f32, {1}, [](std::int64_t) { return 1000; });
    gpu_stream->copy_to_device(amax.gpu.data, larger.cpu.data, sizeof(float));
    on(*gpu_stream, gpu_scratch, &Twin::gpu);
    EXPECT_EQ(fetch(amax.gpu).view().as<float>()[0], 1000.0f);
  }

  // The scale of dS is multiplied by `ds_factor`; unless it is 1, only the amax of dS is compared. A call before has raised all
  // amaxes to `amax_before`.
  void expect_backward_agreement(const AttentionSizes& sizes, Fp8Format format, float ds_factor = 1, float amax_before = 0);
};

// Both sides read the same codes and the same log-sum-exp, those of the CPU's forward pass.
void AttentionFp8GpuTest::expect_backward_agreement(const AttentionSizes& s, Fp8Format format, float ds_factor,
                                                    float amax_before) {
  SCOPED_TRACE(concat(s.text(), format == Fp8Format::e4m3 ? " E4M3" : " E5M2"));
  const float range = format == Fp8Format::e4m3 ? 1 : 128;
  const Shape of_q{s.batch * s.sq, s.heads * s.dim}, of_k{s.batch * s.sk, s.kv_heads * s.dim};
  const CodesTwin q = cast(random(DType::bf16, of_q), 90), k = cast(random(DType::bf16, of_k), 100),
                  v = cast(random(DType::bf16, of_k), 110), o = codes(of_q),
                  go = cast(random(DType::bf16, of_q), 90 * range, format);
  const Twin lse = poisoned(DType::f32, {s.batch * s.heads, s.sq}),
             o_scale = filled(DType::f32, {1}, [](std::int64_t) { return 100; });
  kernels::attention_forward_fp8(
      *cpu_stream, cpu_scratch,
      {.shape = s.shape(),
       .q = q.side(&Twin::cpu),
       .k = k.side(&Twin::cpu),
       .v = v.side(&Twin::cpu),
       .first_keys = {},
       .o = {.spec = {.source = ScaleSource::history}, .out = o.side(&Twin::cpu), .scale = o_scale.cpu.as<float>()},
       .lse = lse.cpu});
  for (const Twin* x : {&o.codes, &o.scale_inv, &lse}) upload(*x);

  struct Result {
    const char* name;
    CodesTwin codes;
    Twin scale, amax;
    kernels::QuantizeEpilogue side(Tensor Twin::*of) const {
      return {.spec = {.format = codes.format, .source = ScaleSource::history},
              .out = codes.side(of),
              .scale = static_cast<const float*>((scale.*of).data),
              .amax = static_cast<float*>((amax.*of).data)};
    }
  };
  const auto result = [&](const char* name, const Shape& shape, float scale) {
    return Result{name, codes(shape, format), filled(DType::f32, {1}, [=](std::int64_t) { return scale * range; }),
                  filled(DType::f32, {1}, [=](std::int64_t) { return amax_before; })};
  };
  const Result ds = result("ds", {1, 1}, 150 * ds_factor), gq = result("gq", of_q, 100), gk = result("gk", of_k, 50),
               gv = result("gv", of_k, 20);
  const auto on = [&](Stream& stream, Arena& scratch, Tensor Twin::*of) {
    kernels::QuantizeEpilogue scores = ds.side(of);
    scores.out.rowwise = scores.out.rowwise_scale_inv = {};
    kernels::attention_backward_fp8(stream, scratch,
                                    {.shape = s.shape(),
                                     .q = q.side(of),
                                     .k = k.side(of),
                                     .v = v.side(of),
                                     .o = o.side(of),
                                     .go = go.side(of),
                                     .lse = lse.*of,
                                     .ds = scores,
                                     .gq = gq.side(of),
                                     .gk = gk.side(of),
                                     .gv = gv.side(of)});
  };
  on(*cpu_stream, cpu_scratch, &Twin::cpu);
  on(*gpu_stream, gpu_scratch, &Twin::gpu);
  // A probability errs by the error of its logit, as in forward; a sum of rounded terms by at most a rounding of each.
  const auto expect_amax = [&](const Result& r) {
    const float on_cpu = *r.amax.cpu.as<float>(), actual = fetch(r.amax.gpu).view().as<float>()[0];
    EXPECT_GT(on_cpu, 0);
    EXPECT_NEAR(actual, on_cpu, amax_before > 0 ? 0 : 0x1p-3 * on_cpu) << "amax of " << r.name;
  };
  expect_amax(ds);
  if (ds_factor != 1) return;
  // The roundings of P, dS and the result on each side, of which most are the same.
  const double noise = rounding_noise(format == Fp8Format::e4m3 ? 0x1p-4 : 0x1p-3).high;
  for (const Result* r : {&gq, &gk, &gv}) {
    EXPECT_TRUE(near_norm(decoded(fetch(r->codes.codes.gpu).view(), format), decoded(r->codes.codes.cpu, format),
                          2 * std::sqrt(6.0) * noise))
        << r->name;
    expect_same_bytes(r->codes.scale_inv, concat("scale_inv of ", r->name));
    expect_amax(*r);
  }
}

TEST_F(AttentionFp8GpuTest, BackwardAgreesWithTheCpu) {
  for (const Fp8Format format : {Fp8Format::e5m2, Fp8Format::e4m3}) {
    for (const AttentionSizes& sizes : std::vector<AttentionSizes>{{1, 4, 4, 128, 128, 128},
                                                                   {2, 4, 2, 256, 256, 128},
                                                                   {3, 4, 2, 129, 129, 128},
                                                                   {2, 2, 1, 77, 77, 128},
                                                                   {1, 4, 1, 1024, 1024, 128},
                                                                   {1, 32, 8, 1000, 1000, 128},
                                                                   {1, 32, 8, 2048, 2048, 128}})
      expect_backward_agreement(sizes, format);
  }
}

// Calibration passes dS with scale 1, at which most of its codes are 0, and reads its amax. A larger amax of the same step stays.
TEST_F(AttentionFp8GpuTest, TheAmaxOfScoreGradientsDoesNotDependOnTheirScale) {
  const AttentionSizes sizes{1, 4, 2, 256, 256, 128};
  for (const float factor : {0x1p-60f, 0x1p20f}) expect_backward_agreement(sizes, Fp8Format::e5m2, factor);
  expect_backward_agreement(sizes, Fp8Format::e5m2, 1, 1e6f);
}

// Gradients of Q, K and V are decoded into columns of one tensor.
TEST_F(AttentionFp8GpuTest, DecodesIntoColumns) {
  for (const std::int64_t begin : {16, 5}) {
    const CodesTwin q = cast(random(DType::bf16, {70, 48}), 100, Fp8Format::e5m2);
    const Twin y = poisoned(DType::bf16, {70, 96});
    const auto on = [&](Stream& stream, Tensor Twin::*of) {
      kernels::decode_codes(stream, {.q = q.side(of), .y = (y.*of).slice_cols(begin, begin + 48)});
    };
    on(*cpu_stream, &Twin::cpu);
    on(*gpu_stream, &Twin::gpu);
    expect_same_bytes(y, concat("from column ", begin));
  }
}

TEST_F(AttentionFp8GpuTest, AgreesWithTheCpu) {
  for (const AttentionSizes& sizes : std::vector<AttentionSizes>{{1, 4, 4, 128, 128, 64},
                                                                 {2, 4, 2, 256, 256, 64},
                                                                 {1, 8, 2, 256, 256, 128},
                                                                 {1, 4, 1, 1024, 1024, 128},
                                                                 {2, 6, 3, 384, 384, 80},
                                                                 {3, 4, 2, 129, 129, 96},
                                                                 {2, 2, 1, 77, 77, 16},
                                                                 {1, 2, 1, 130, 130, 256},
                                                                 {1, 32, 8, 2048, 2048, 128}})
    expect_fp8_agreement(sizes);
}

// Every code of both formats.
TEST_F(AttentionFp8GpuTest, DecodesCodesToTheCpusBits) {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const std::int64_t cols : {256, 259}) {
      const Twin q = zeros(dtype_of(format), {3, cols}), y = poisoned(DType::bf16, {3, cols});
      const Twin scale_inv = filled(DType::f32, {1}, [](std::int64_t) { return 0.3; });
      for (std::int64_t i = 0; i < q.cpu.elements(); ++i) q.cpu.as_bytes()[i] = static_cast<std::uint8_t>(i);
      upload(q);
      const auto on = [&](Stream& stream, Tensor Twin::*of) {
        Quantized codes{.format = format, .rowwise = q.*of, .rowwise_scale_inv = scale_inv.*of};
        kernels::decode_codes(stream, {.q = codes, .y = y.*of});
      };
      on(*cpu_stream, &Twin::cpu);
      on(*gpu_stream, &Twin::gpu);
      expect_same_bytes(y, "values");
    }
  }
}

}  // namespace
}  // namespace octet::testing
