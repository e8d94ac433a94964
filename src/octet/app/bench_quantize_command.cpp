#include <fmt/format.h>

#include <cstring>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::app {
namespace {

constexpr std::int64_t kRows = 8192, kCols = 4096;  // 64 MiB of BF16: beyond the caches

// Bytes per second that memcpy reads and writes on one core.
double copy_bandwidth(Arena& data) {
  const ArenaScope used(data);
  const Tensor from = allocate(data, DType::bf16, {kRows, kCols}), to = allocate(data, DType::bf16, {kRows, kCols});
  std::memset(from.data, 1, from.bytes());
  const double seconds = shortest_time([&] { std::memcpy(to.data, from.data, from.bytes()); });
  return 2.0 * static_cast<double>(from.bytes()) / seconds;
}

}  // namespace

int run_bench_quantize(const BenchArgs& args) {
  set_num_threads(1);
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  Arena data(*device, MemoryCategory::activations, std::size_t{1} << 29);
  Arena scratch(*device, MemoryCategory::workspace, std::size_t{1} << 28);
  const double ceiling = copy_bandwidth(data) * 1e-9;
  const Tensor x = allocate(data, DType::bf16, {kRows, kCols});
  const Rng rng(1, RngStream::test);
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x.as<BFloat16>()[i] = BFloat16(static_cast<float>(rng.uniform(static_cast<std::uint64_t>(i)) * 8 - 4));
  }
  struct Case {
    const char* name;
    ScaleTile tile;
    ScaleSource source;
    bool codes, transposed;
  };
  constexpr Case kCases[] = {
      {"tensor, delayed: cast + amax", ScaleTile::tensor, ScaleSource::history, true, false},
      {"tensor, delayed: cast + amax + transpose", ScaleTile::tensor, ScaleSource::history, true, true},
      {"tensor, current: amax, cast", ScaleTile::tensor, ScaleSource::tensor, true, false},
      {"row: cast", ScaleTile::row, ScaleSource::tensor, true, false},
      {"1x128: cast", ScaleTile::block_1x128, ScaleSource::tensor, true, false},
      {"1x128: cast, both ways round", ScaleTile::block_1x128, ScaleSource::tensor, true, true},
      {"128x128: cast + transpose", ScaleTile::block_128x128, ScaleSource::tensor, true, true},
      {"MX 1x32: cast", ScaleTile::mx_1x32, ScaleSource::tensor, true, false},
  };
  float scale = 64.0f, amax = 0.0f;
  std::vector<BenchRow> rows;
  for (const Case& c : kCases) {
    const ArenaScope used(data);
    Quantized q{.tile = c.tile};
    q.rowwise = allocate(data, DType::f8_e4m3, {kRows, kCols});
    q.rowwise_scale_inv = allocate(data, scale_dtype(c.tile), scale_shape(c.tile, kRows, kCols));
    if (c.transposed) {
      q.columnwise = allocate(data, DType::f8_e4m3, {kCols, kRows});
      q.columnwise_scale_inv = c.tile == ScaleTile::tensor
                                   ? q.rowwise_scale_inv
                                   : allocate(data, scale_dtype(c.tile), scale_shape(c.tile, kCols, kRows));
    }
    const bool history = c.source == ScaleSource::history;
    const double seconds = shortest_time([&] {
      kernels::quantize(*stream, scratch,
                        {.x = x,
                         .spec = {.tile = c.tile, .source = c.source},
                         .out = q,
                         .scale = history ? &scale : nullptr,
                         .amax = history ? &amax : nullptr});
    });
    // The bytes that the algorithm must move: x once, and each version of the codes once.
    const double bytes = static_cast<double>(x.bytes() + q.rowwise.bytes() + (c.transposed ? q.columnwise.bytes() : 0));
    rows.push_back({.name = c.name,
                    .seconds = seconds,
                    .rate = bytes / seconds * 1e-9,
                    .unit = "GB/s",
                    .ceiling = ceiling,
                    .against = "copying memory"});
  }
  fmt::print("casts of BF16 [{}, {}] on one core\n", kRows, kCols);
  show_bench(rows, args.json);
  return 0;
}

}  // namespace octet::app
