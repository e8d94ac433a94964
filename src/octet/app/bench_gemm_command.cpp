#include <fmt/format.h>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/base/threads.h"
#include "octet/kernels/gemm/blas.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

struct Product {
  std::int64_t m, n, k;
};

// Products of the quickstart's model and of larger ones: fprop, dgrad and wgrad have these shapes in turn.
constexpr Product kProducts[] = {{2048, 256, 128}, {2048, 704, 128},   {2048, 128, 352},   {704, 128, 2048},
                                 {2048, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048}, {2048, 5632, 2048}};

}  // namespace

int run_bench_gemm(const BenchArgs& args) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  std::vector<BenchRow> rows;
  for (const Product& c : kProducts) {
    const double flops = 2.0 * static_cast<double>(c.m * c.n * c.k);
    const double ceiling = flops / kernels::cpu::blas_seconds(c.m, c.n, c.k, num_threads()) * 1e-9;
    Arena scratch(*device, MemoryCategory::workspace, std::size_t{1} << 30);
    Arena data(*device, MemoryCategory::activations, std::size_t{1} << 29);
    using Layout = kernels::GemmOperand::Layout;
    const auto time = [&](const char* kind, DType dtype, Layout layout = Layout::k_last) {
      const ArenaScope used(data);
      const auto operand = [&](std::int64_t x) {
        return kernels::GemmOperand{.values = allocate(data, dtype, layout == Layout::k_last ? Shape{x, c.k} : Shape{c.k, x}),
                                    .layout = layout};
      };
      kernels::GemmOperand a = operand(c.m), b = operand(c.n);
      if (dtype == DType::f8_e4m3) a.scale_inv = b.scale_inv = allocate(data, DType::f32, {1});
      const Tensor d = allocate(data, dtype == DType::f32 ? DType::f32 : DType::bf16, {c.m, c.n});
      const double seconds = shortest_time([&] { kernels::gemm(*stream, scratch, {.a = a, .b = b, .c = {}, .d = d}); });
      rows.push_back({.name = fmt::format("{} {} x {} x {}", kind, c.m, c.n, c.k),
                      .seconds = seconds,
                      .rate = flops / seconds * 1e-9,
                      .unit = "GFLOP/s",
                      .ceiling = ceiling,
                      .against = "OpenBLAS alone"});
    };
    time("fp32", DType::f32);
    time("bf16", DType::bf16);
    time("bf16 with K first,", DType::bf16, Layout::k_first);
    time("fp8 ", DType::f8_e4m3);
  }
  const std::string tiles = kernels::gemm_tiles_name();
  fmt::print("GEMM on {}, {} kernels of OpenBLAS{}\n", telemetry::format_count(num_threads(), "thread"),
             kernels::gemm_core_name(), tiles.empty() ? "" : fmt::format(", {} for BF16 and FP8", tiles));
  show_bench(rows, args.json);
  return 0;
}

}  // namespace octet::app
