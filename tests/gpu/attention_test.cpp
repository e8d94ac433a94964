#include "octet/kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gpu/twins.h"
#include "octet/kernels/attention/attention_workspace.h"
#include "octet/numerics/bounds.h"

namespace octet {
namespace {

using kernels::AttentionBackward;
using kernels::AttentionForward;
using kernels::AttentionShape;
using testing::near;
using testing::near_norm;
using testing::same_bytes;
using testing::Twin;
using testing::values_of;

struct Sizes {
  std::int64_t batch, heads, kv_heads, sq, sk, dim;
  bool deterministic = false;
  std::int64_t window = 0;

  std::string text() const {
    return concat("batch ", batch, " heads ", heads, "/", kv_heads, " tokens ", sq, "/", sk, " dim ", dim,
                  deterministic ? " deterministic" : "", " window ", window);
  }
  AttentionShape shape() const {
    return {.batch = batch,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = dim,
            .scale = 1 / std::sqrt(static_cast<double>(dim)),
            .window = window,
            .deterministic = deterministic};
  }
};

Twin columns(const Twin& t, std::int64_t begin, std::int64_t end) {
  return {t.cpu.slice_cols(begin, end), t.gpu.slice_cols(begin, end)};
}

// The largest norm of `dim` adjacent elements, which are a head of a row.
double largest_norm(const std::vector<double>& x, std::int64_t dim) {
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(dim)) {
    double sum = 0;
    for (std::size_t c = i; c < i + static_cast<std::size_t>(dim); ++c) sum += x[c] * x[c];
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

// The distance that `roundings` independent roundings to BF16 make, each of which moves a result by its own share (the terms of
// the sums have random signs); twice that, as product_noise() allows.
double bf16_noise(int roundings) { return 2 * std::sqrt(roundings) * rounding_noise(kUnitRoundoffBf16).high; }

class AttentionGpuTest : public testing::TwinTest {
 protected:
  struct Operands {
    Sizes sizes;
    Twin q, k, v, o, lse, go, gq, gk, gv;

    AttentionForward forward(Tensor Twin::*side) const {
      return {.shape = sizes.shape(), .q = q.*side, .k = k.*side, .v = v.*side, .o = o.*side, .lse = lse.*side};
    }
    AttentionBackward backward(Tensor Twin::*side) const {
      return {.shape = sizes.shape(),
              .q = q.*side,
              .k = k.*side,
              .v = v.*side,
              .o = o.*side,
              .lse = lse.*side,
              .go = go.*side,
              .gq = gq.*side,
              .gk = gk.*side,
              .gv = gv.*side};
    }
  };

  // Q, K and V are slices of one matrix as a fused projection writes it; with unequal lengths, K and V of one.
  Operands operands(const Sizes& s) {
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
    x.lse = poisoned(DType::f32, {s.heads, s.batch * s.sq});
    return x;
  }

  void run_cpu(const Operands& x) {
    attention_forward(*cpu_queue, cpu_scratch, x.forward(&Twin::cpu));
    attention_backward(*cpu_queue, cpu_scratch, x.backward(&Twin::cpu));
  }
  void run_gpu(const Operands& x) {
    attention_forward(*gpu_queue, gpu_scratch, x.forward(&Twin::gpu));
    attention_backward(*gpu_queue, gpu_scratch, x.backward(&Twin::gpu));
  }

  std::vector<double> on_gpu(const Twin& t) { return values_of(fetch(t.gpu).view()); }
  // From [B, H, Sq] to the [H, B, Sq] of the CPU.
  std::vector<double> lse_on_gpu(const Operands& x) {
    const Sizes& s = x.sizes;
    const std::vector<double> stored = on_gpu(x.lse);
    std::vector<double> result;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t b = 0; b < s.batch; ++b) {
        const auto begin = stored.begin() + (b * s.heads + h) * s.sq;
        result.insert(result.end(), begin, begin + s.sq);
      }
    }
    return result;
  }

  void expect_agreement(Sizes sizes) {
    for (const bool deterministic : {false, true}) {
      sizes.deterministic = deterministic;
      SCOPED_TRACE(sizes.text());
      const Operands x = operands(sizes);
      run_cpu(x);
      run_gpu(x);
      // Logits err as dot products, whose terms add up to at most |q| |k|; the sum of their exponentials by its length and the
      // approximations of exp and log.
      const double reach = largest_norm(values_of(x.q.cpu), sizes.dim) * largest_norm(values_of(x.k.cpu), sizes.dim);
      const double logit_error = dot_error_bound(sizes.dim, reach * sizes.shape().scale, 3);
      const double sum_error = gamma(static_cast<double>(sizes.sk + 64), kUnitRoundoffF32);
      EXPECT_TRUE(near(lse_on_gpu(x), values_of(x.lse.cpu),
                       {.absolute = 2 * (logit_error + sum_error), .relative = gamma(8, kUnitRoundoffF32)}))
          << "lse";
      // P, and o as both sides store it.
      EXPECT_TRUE(near_norm(on_gpu(x.o), values_of(x.o.cpu), bf16_noise(3))) << "o";
      // P or dS, o as it was stored, a head's share before the sum over a group, and the results; of either side.
      const bool in_two = kernels::attention_backward_keys(sizes.shape(), sizes.sq, sizes.sk) != sizes.sk;
      const int halves = in_two ? 2 : 0;  // of the keys, whose shares of gq are rounded before their sum
      EXPECT_TRUE(near_norm(on_gpu(x.gq), values_of(x.gq.cpu), bf16_noise(6 + halves))) << "gq";
      EXPECT_TRUE(near_norm(on_gpu(x.gk), values_of(x.gk.cpu), bf16_noise(6))) << "gk";
      EXPECT_TRUE(near_norm(on_gpu(x.gv), values_of(x.gv.cpu), bf16_noise(6))) << "gv";
    }
  }
};

TEST_F(AttentionGpuTest, AgreesWithTheCpu) {
  const std::vector<Sizes> cases = {
      {1, 4, 4, 64, 64, 64},    {2, 4, 2, 96, 96, 64},       // GQA, more than one sequence
      {1, 8, 2, 256, 256, 128}, {1, 4, 1, 1024, 1024, 128},  // MQA, many tiles
      {2, 6, 3, 40, 40, 80},                                 // shorter than a tile, a head_dim between two
      {3, 4, 2, 129, 129, 96},  {2, 2, 1, 77, 77, 8},
      {1, 2, 1, 130, 130, 256}, {1, 4, 2, 64, 160, 64},  // a chunk on its prefix
      {2, 4, 2, 100, 333, 128}, {2, 4, 4, 1, 70, 64},    // one new token
  };
  for (const Sizes& sizes : cases) expect_agreement(sizes);
}

// Shorter than a tile, of some tiles, of one key less than all, of all and of more; alone and of a chunk on the keys that its
// window shows, on more of them and on less.
TEST_F(AttentionGpuTest, AgreesWithTheCpuOnWindows) {
  const auto windowed = [](Sizes sizes, std::int64_t window) {
    sizes.window = window;
    return sizes;
  };
  for (const std::int64_t window : {2, 17, 128, 200, 255, 256, 1000}) {
    expect_agreement(windowed({2, 4, 2, 256, 256, 64}, window));
    expect_agreement(windowed({1, 8, 2, 256, 256, 128}, window));
  }
  for (const std::int64_t window : {64, 100, 333, 334}) {
    expect_agreement(windowed({1, 4, 2, 128, 128 + window - 1, 128}, window));
    expect_agreement(windowed({1, 4, 2, 128, 600, 128}, window));
    expect_agreement(windowed({2, 4, 1, 77, 333, 64}, window));
  }
  expect_agreement(windowed({1, 4, 1, 2048, 2048, 128}, 512));
  expect_agreement(windowed({1, 4, 4, 1001, 1001, 96}, 300));
}

TEST_F(AttentionGpuTest, DeterministicRunsHaveTheSameBits) {
  const Operands x = operands({2, 8, 2, 1024, 1024, 128, true});
  const auto results = [&] {
    run_gpu(x);
    std::vector<HostTensor> host;
    for (const Twin* t : {&x.o, &x.lse, &x.gq, &x.gk, &x.gv}) host.push_back(fetch(t->gpu));
    return host;
  };
  const std::vector<HostTensor> first = results();
  for (int i = 0; i < 5; ++i) {
    const std::vector<HostTensor> again = results();
    for (std::size_t j = 0; j < first.size(); ++j) EXPECT_TRUE(same_bytes(again[j].view(), first[j].view())) << j;
  }
}

// cuDNN's own number is checked when a plan is made.
TEST_F(AttentionGpuTest, TakesNoMoreScratchThanPlanned) {
  for (const Sizes& sizes : std::vector<Sizes>{{1, 8, 2, 4096, 4096, 64, true},
                                               {1, 8, 2, 4096, 4096, 128, true},
                                               {8, 4, 4, 1001, 1001, 96, true},
                                               {8, 4, 4, 1001, 1001, 96},
                                               {8, 16, 4, 1001, 1001, 128},
                                               {1, 8, 2, 500, 9000, 192, true},
                                               {1, 8, 2, 500, 9000, 64},
                                               {1, 8, 2, 4096, 4096, 128, false, 1024},
                                               {1, 8, 2, 4096, 4096, 128, true, 1024},
                                               {1, 8, 2, 1024, 2047, 128, false, 1024},
                                               {1, 8, 2, 1024, 2047, 128, true, 1024}}) {
    const auto meta = make_meta_device(DeviceKind::cuda);
    const auto meta_queue = meta->make_queue();
    Arena planned(*meta, MemoryCategory::workspace, 0), taken(*gpu, MemoryCategory::workspace, std::size_t{1} << 30);
    const Operands x = operands(sizes);
    attention_forward(*meta_queue, planned, x.forward(&Twin::gpu));
    attention_backward(*meta_queue, planned, x.backward(&Twin::gpu));
    EXPECT_NO_THROW(attention_forward(*gpu_queue, taken, x.forward(&Twin::gpu))) << sizes.text();
    EXPECT_NO_THROW(attention_backward(*gpu_queue, taken, x.backward(&Twin::gpu))) << sizes.text();
    gpu_queue->synchronize();
    EXPECT_EQ(taken.high_water(), planned.high_water()) << sizes.text();
  }
}

// A tile that reaches beyond the end of a sequence does not see the next one.
TEST_F(AttentionGpuTest, NanStaysInItsSequence) {
  for (const std::int64_t tokens : {40, 200}) {
    const Sizes sizes{2, 4, 2, tokens, tokens, 64};
    const std::int64_t q = sizes.heads * sizes.dim, width = q + 2 * sizes.kv_heads * sizes.dim;
    Operands x = operands(sizes);
    const Twin in = filled(DType::bf16, {2 * tokens, width}, [&](std::int64_t i) {
      return i < tokens * width ? std::sin(static_cast<double>(i)) : std::numeric_limits<double>::quiet_NaN();
    });
    x.q = columns(in, 0, q);
    x.k = columns(in, q, q + (width - q) / 2);
    x.v = columns(in, q + (width - q) / 2, width);
    run_gpu(x);
    for (const Twin* t : {&x.o, &x.gq, &x.gk, &x.gv}) {
      const std::vector<double> values = on_gpu(*t);
      const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
      EXPECT_TRUE(std::all_of(values.begin(), middle, [](double v) { return std::isfinite(v); })) << tokens;
      EXPECT_TRUE(std::isnan(*middle)) << tokens;
    }
  }
}

TEST_F(AttentionGpuTest, RefusesBeforeAnyStep) {
  const auto meta = make_meta_device(DeviceKind::cuda);
  const auto meta_queue = meta->make_queue();
  Arena scratch(*meta, MemoryCategory::workspace, 0);
  const auto refused_with = [&](const AttentionForward& op) {
    try {
      attention_forward(*meta_queue, scratch, op);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::done;
  };
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 16, 64}).forward(&Twin::gpu)), ExitCode::done);
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 16, 12}).forward(&Twin::gpu)), ExitCode::config);
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 16, 264}).forward(&Twin::gpu)), ExitCode::config);
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 8, 64}).forward(&Twin::gpu)), ExitCode::internal);
}

}  // namespace
}  // namespace octet
