#include "octet/kernels/router/router.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gpu/fused.h"
#include "octet/kernels/experts/experts.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

struct ExpertsGpuTest : testing::FusedTest {};

// The logits have equal bits, so the choices are equal. Other results agree within the rounding of both sides
// (tests/kernels/router_test.cpp).
TEST_F(ExpertsGpuTest, RoutesAsTheCpu) {
  struct Case {
    std::int64_t sequences, length, experts, k;
    bool normalise = true, biased = false;
  };
  for (const Case& c : {Case{1, 1, 1, 1},
                        {2, 300, 8, 2},
                        {3, 77, 64, 6},
                        {1, 2048, 16, 4},
                        {2, 300, 128, 8, false},
                        {2, 300, 8, 2, true, true},
                        {1, 200, 128, 8, false, true}}) {
    const auto& [sequences, length, experts, k, normalise, biased] = c;
    const bool adds_up = normalise;
    const std::int64_t tokens = sequences * length;
    const std::int64_t e_count = experts;
    const Twin logits = filled(DType::f32, {tokens, experts}, [&](std::int64_t i) {
      const Rng rng(11, RngStream::test, 5);
      const std::int64_t t = i / e_count;
      if (t % 50 == 3) return 1.0;  // equal ones
      return 2.0 * rng.normal(static_cast<std::uint64_t>(i));
    });
    const Twin chosen = zeros(DType::i32, {tokens, k}), weights = poisoned(DType::f32, {tokens, k});
    const Twin statistics = poisoned(DType::f32, {sequences, 2 * experts + 1});
    const Twin total = zeros(DType::f64, {2}), loads = zeros(DType::f64, {experts});
    // The largest scores of a token, of which a biased choice takes k, lie at least 2e-6 apart. Both sides err by less.
    const Twin bias = filled(DType::f32, {experts}, [](std::int64_t e) {
      return 0.3 * Rng(11, RngStream::test, 6).normal(static_cast<std::uint64_t>(e));
    });
    const Twin found = zeros(DType::f32, {1}), counted = zeros(DType::i32, {sequences});
    for (std::int64_t b = 0; b < sequences; ++b) counted.cpu.as<std::int32_t>()[b] = static_cast<std::int32_t>(b * length / 3);
    upload(counted);
    const Twin gweights = random(DType::f32, {tokens, k}), glogits = poisoned(DType::f32, {tokens, experts});
    const auto run = [&](Stream& stream, Arena& scratch, auto side) {
      router_forward(stream, scratch,
                     {.logits = side(logits),
                      .bias = c.biased ? side(bias) : Tensor{},
                      .experts = side(chosen),
                      .weights = side(weights),
                      .statistics = side(statistics),
                      .normalise = adds_up});
      router_losses(stream, {.statistics = side(statistics),
                             .counted = c.sequences > 1 ? side(counted) : Tensor{},
                             .seq_len = c.length,
                             .total = side(total).template as<double>(),
                             .loads = side(loads).template as<double>()});
      update_router_bias(stream, {.bias = side(bias),
                                  .loads = side(loads).template as<double>(),
                                  .rate = 0.001,
                                  .found_inf = side(found).template as<float>()});
      router_backward(stream, {.logits = side(logits),
                               .experts = side(chosen),
                               .weights = side(weights),
                               .gweights = side(gweights),
                               .statistics = side(statistics),
                               .counted = c.sequences > 1 ? side(counted) : Tensor{},
                               .seq_len = c.length,
                               .balance = 0.7,
                               .z = 0.3,
                               .normalise = adds_up,
                               .glogits = side(glogits)});
    };
    run(*cpu_stream, cpu_scratch, [](const Twin& t) { return t.cpu; });
    run(*gpu_stream, gpu_scratch, [](const Twin& t) { return t.gpu; });
    const std::string what = concat(tokens, " tokens, ", k, " of ", experts, " experts");
    expect_same_bytes(chosen, "experts of " + what);
    // exp is within 2 ulp, for an argument of at most 20 that is rounded once. Sums of E or T terms are added in another order.
    const double r = gamma(60 + static_cast<double>(experts) + static_cast<double>(length), kUnitRoundoffF32);
    expect_near(weights, {.relative = 2 * r}, "weights of " + what);
    expect_near(statistics, {.relative = 4 * r}, "statistics of " + what);
    expect_near(total, {.relative = 8 * r}, "losses of " + what);
    expect_same_bytes(loads, "loads of " + what);
    expect_same_bytes(bias, "bias of " + what);
    // glogits are differences of terms that are at most this large.
    expect_near(glogits, {.absolute = 16 * r * (1 + 20 * 0.7 * static_cast<double>(experts)), .relative = 16 * r},
                "glogits of " + what);
  }
}

TEST_F(ExpertsGpuTest, OrdersExpertsAsTheCpu) {
  const Rng rng(12, RngStream::test, 6);
  for (const auto& [tokens, experts, k] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {37, 4, 2}, {5000, 8, 2}, {1025, 64, 8}, {3000, 8, 1}}) {
    for (const std::int64_t multiple : {1, 128}) {
      const std::int64_t e = experts, count = k;
      const Twin chosen = zeros(DType::i32, {tokens, k});
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto first = static_cast<std::int64_t>(rng.uniform(static_cast<std::uint64_t>(t)) * static_cast<double>(e)) % e;
        for (std::int64_t s = 0; s < count; ++s)
          chosen.cpu.as<std::int32_t>()[t * count + s] = static_cast<std::int32_t>((first + s) % e);
      }
      upload(chosen);
      const Twin counts = zeros(DType::i32, {experts}), rows = zeros(DType::i32, {tokens, k});
      expert_order(*cpu_stream, {.experts = chosen.cpu, .multiple = multiple, .counts = counts.cpu, .rows = rows.cpu});
      expert_order(*gpu_stream, {.experts = chosen.gpu, .multiple = multiple, .counts = counts.gpu, .rows = rows.gpu});
      expect_same_bytes(counts, concat("counts of ", tokens, " tokens"));
      expect_same_bytes(rows, concat("rows of ", tokens, " tokens"));
    }
  }
}

TEST_F(ExpertsGpuTest, MovesRowsAsTheCpu) {
  for (const auto& [tokens, k, d] : {std::array<std::int64_t, 3>{1, 1, 8}, {37, 3, 45}, {200, 2, 1024}, {130, 2, 4096}}) {
    const std::int64_t count = tokens * k + 100, all = tokens * k;
    const Twin x = random(DType::bf16, {tokens, d}), packed = random(DType::bf16, {count, d}),
               residual = random(DType::bf16, {tokens, d});
    const Twin weights = random(DType::f32, {tokens, k}), rows = zeros(DType::i32, {tokens, k});
    for (std::int64_t i = 0; i < all; ++i) rows.cpu.as<std::int32_t>()[i] = static_cast<std::int32_t>(all - 1 - i + 50);
    upload(rows);
    const Twin y = zeros(DType::bf16, {count, d}), plain = zeros(DType::bf16, {count, d}),
               sums = poisoned(DType::bf16, {tokens, d});
    const Twin dots = poisoned(DType::f32, {tokens, k});
    const auto run = [&](Stream& stream, auto side) {
      expert_scatter(stream, {.x = side(x), .rows = side(rows), .weights = side(weights), .y = side(y)});
      expert_scatter(stream, {.x = side(x), .rows = side(rows), .weights = {}, .y = side(plain)});
      expert_combine(
          stream, {.x = side(packed), .rows = side(rows), .weights = side(weights), .residual = side(residual), .y = side(sums)});
      expert_dot(stream, {.gy = side(x), .x = side(packed), .rows = side(rows), .gweights = side(dots)});
    };
    run(*cpu_stream, [](const Twin& t) { return t.cpu; });
    run(*gpu_stream, [](const Twin& t) { return t.gpu; });
    const std::string what = concat(tokens, " x ", d);
    expect_same_bytes(y, "scaled " + what);  // one product, rounded once
    expect_same_bytes(plain, "rows " + what);
    // Each side rounds k products and sums of numbers within 6 standard deviations, and the result.
    expect_near(sums,
                {.absolute = 2 * gamma(static_cast<double>(k) + 1, kUnitRoundoffF32) * 36.0 * static_cast<double>(k + 1),
                 .relative = 2.1 * kUnitRoundoffBf16},
                "sums " + what);
    expect_near(dots, {.absolute = 2 * gamma(static_cast<double>(d), kUnitRoundoffF32) * static_cast<double>(d)}, "dots " + what);
  }
}

TEST_F(ExpertsGpuTest, ScattersCodesAsTheCpu) {
  for (const auto& [tokens, experts, k, d] :
       {std::array<std::int64_t, 4>{3, 4, 1, 16}, {37, 3, 3, 48}, {900, 8, 2, 1040}, {130, 2, 2, 4096}}) {
    const std::int64_t all = tokens * k, room = grouped_rows(all, experts);
    const Twin x = random(DType::bf16, {tokens, d}), weights = random(DType::f32, {tokens, k}),
               scales = random(DType::f32, {experts});
    const Twin chosen = zeros(DType::i32, {tokens, k});
    for (std::int64_t i = 0; i < all; ++i)
      chosen.cpu.as<std::int32_t>()[i] = static_cast<std::int32_t>((i / k + i % k) % experts);
    for (std::int64_t e = 0; e < experts; ++e) scales.cpu.as<float>()[e] = 1.0f + std::abs(scales.cpu.as<float>()[e]);
    upload(chosen);
    upload(scales);
    for (const Twin& by : {Twin{}, weights}) {
      const Twin largest = poisoned(DType::f32, {experts});
      expert_amax(*cpu_stream, {.x = x.cpu, .experts = chosen.cpu, .weights = by.cpu, .amax = largest.cpu});
      expert_amax(*gpu_stream, {.x = x.gpu, .experts = chosen.gpu, .weights = by.gpu, .amax = largest.gpu});
      expect_same_bytes(largest, concat("largest magnitudes of ", tokens, " x ", d));
    }
    const Twin counts = zeros(DType::i32, {experts}), first = zeros(DType::i32, {experts + 1}),
               tiles = zeros(DType::i32, {room / kGroupRows}), rows = zeros(DType::i32, {tokens, k});
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      const DType dtype = dtype_of(format);
      const Twin rowwise = zeros(dtype, {room, d}), columnwise = zeros(dtype, {d, room}), copied = zeros(dtype, {all, d});
      const Twin scale_inv = zeros(DType::f32, {experts}), amaxes = zeros(DType::f32, {experts}),
                 places = zeros(DType::i32, {all, 1});
      for (std::int64_t i = 0; i < all; ++i) places.cpu.as<std::int32_t>()[i] = static_cast<std::int32_t>(all - 1 - i);
      upload(places);
      const auto run = [&](Stream& stream, auto side) {
        const RowGroups groups{.counts = side(counts), .first = side(first), .tiles = side(tiles)};
        expert_order(stream, {.experts = side(chosen), .multiple = kGroupRows, .counts = side(counts), .rows = side(rows)});
        group_rows(stream, {groups});
        QuantizeEpilogue to{.spec = {.format = format, .tile = ScaleTile::tensor, .source = ScaleSource::history},
                            .out = {},
                            .scale = side(scales).template as<float>(),
                            .amax = side(amaxes).template as<float>(),
                            .groups = {},
                            .scale_stride = 1,
                            .amax_stride = 1};
        to.out.format = format;
        to.out.rowwise = side(rowwise);
        expert_scatter(
            stream, {.x = side(x), .rows = side(rows), .weights = side(weights), .y = {}, .experts = side(chosen), .codes = to});
        clear_gaps(stream, {groups, side(rowwise)});
        to.out.columnwise = side(columnwise);
        to.out.rowwise_scale_inv = to.out.columnwise_scale_inv = side(scale_inv);
        to.groups = groups;
        complete_codes(stream, to);
        expert_scatter(stream, {.x = side(rowwise).slice_rows(0, all), .rows = side(places), .weights = {}, .y = side(copied)});
      };
      run(*cpu_stream, [](const Twin& t) { return t.cpu; });
      run(*gpu_stream, [](const Twin& t) { return t.gpu; });
      const std::string what = concat(tokens, " x ", d);
      expect_same_bytes(rowwise, "codes " + what);
      expect_same_bytes(columnwise, "transposed codes " + what);
      expect_same_bytes(scale_inv, "scales " + what);
      expect_same_bytes(amaxes, "amaxes " + what);
      expect_same_bytes(copied, "copied codes " + what);
    }
  }
}

}  // namespace
}  // namespace octet::kernels
