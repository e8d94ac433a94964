#include <fmt/format.h>

#include <cmath>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/kernels/attention/attention.h"
#include "octet/kernels/gemm/blas.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

struct Case {
  std::int64_t batch, seq_len, heads, kv_heads, head_dim;
};
constexpr Case kCases[] = {{16, 128, 4, 2, 32}, {1, 2048, 8, 2, 64}, {1, 4096, 8, 2, 128}};

void fill(const Tensor& x, std::uint32_t subject) {
  const Rng rng(1, RngStream::test, subject);
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x.as<BFloat16>()[i] = BFloat16(static_cast<float>(rng.uniform(static_cast<std::uint64_t>(i)) - 0.5));
  }
}

}  // namespace

int run_bench_attention(const BenchArgs& args) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  const double ceiling = 2.0 * 2048 * 2048 * 2048 / kernels::cpu::blas_seconds(2048, 2048, 2048, num_threads()) * 1e-9;
  std::vector<BenchRow> rows;
  for (const Case& c : kCases) {
    Arena data(*device, MemoryCategory::activations, std::size_t{1} << 28);
    Arena scratch(*device, MemoryCategory::workspace, std::size_t{1} << 28);
    const std::int64_t tokens = c.batch * c.seq_len, q_cols = c.heads * c.head_dim, kv_cols = c.kv_heads * c.head_dim;
    const auto make = [&](std::int64_t cols, std::uint32_t subject) {
      const Tensor x = allocate(data, DType::bf16, {tokens, cols});
      fill(x, subject);
      return x;
    };
    const kernels::AttentionShape shape{.batch = c.batch,
                                        .heads = c.heads,
                                        .kv_heads = c.kv_heads,
                                        .head_dim = c.head_dim,
                                        .scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim))};
    const Tensor q = make(q_cols, 1), k = make(kv_cols, 2), v = make(kv_cols, 3), o = make(q_cols, 4), go = make(q_cols, 5);
    const Tensor gq = make(q_cols, 6), gk = make(kv_cols, 7), gv = make(kv_cols, 8);
    const Tensor lse = allocate(data, DType::f32, {c.batch * c.heads, c.seq_len});
    // Unmasked elements of causal attention alone; forward two products, backward five.
    const double pairs = static_cast<double>(c.batch * c.heads) * 0.5 * static_cast<double>(c.seq_len * (c.seq_len + 1));
    const double product = 2.0 * pairs * static_cast<double>(c.head_dim);
    const auto add = [&](const char* pass, double products, double seconds) {
      rows.push_back(
          {.name = fmt::format("{} {} x {} tokens, {}/{} heads of {}", pass, c.batch, c.seq_len, c.heads, c.kv_heads, c.head_dim),
           .seconds = seconds,
           .rate = products * product / seconds * 1e-9,
           .unit = "GFLOP/s",
           .ceiling = ceiling,
           .against = "a large GEMM"});
    };
    add("forward ", 2, shortest_time([&] {
          kernels::attention_forward(*stream, scratch, {.shape = shape, .q = q, .k = k, .v = v, .o = o, .lse = lse});
        }));
    add("backward", 5, shortest_time([&] {
          kernels::attention_backward(
              *stream, scratch,
              {.shape = shape, .q = q, .k = k, .v = v, .o = o, .lse = lse, .go = go, .gq = gq, .gk = gk, .gv = gv});
        }));
  }
  fmt::print("causal attention in BF16 on {}\n", telemetry::format_count(num_threads(), "thread"));
  show_bench(rows, args.json);
  return 0;
}

}  // namespace octet::app
