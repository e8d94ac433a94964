#include <limits>

#include "gpu/attention_fixture.h"

namespace octet::testing {
namespace {

TEST_F(AttentionGpuTest, AgreesWithTheCpu) {
  const std::vector<AttentionSizes> cases = {
      {1, 4, 4, 64, 64, 64},    {2, 4, 2, 96, 96, 64},       // GQA, more than one sequence
      {1, 8, 2, 256, 256, 128}, {1, 4, 1, 1024, 1024, 128},  // MQA, many tiles
      {2, 6, 3, 40, 40, 80},                                 // shorter than a tile, a head_dim between two
      {3, 4, 2, 129, 129, 96},  {2, 2, 1, 77, 77, 8},
      {1, 2, 1, 130, 130, 256}, {1, 4, 2, 64, 160, 64},  // a chunk on its prefix
      {2, 4, 2, 100, 333, 128}, {2, 4, 4, 1, 70, 64},    // one new token
  };
  for (const AttentionSizes& sizes : cases) expect_agreement(sizes);
}

TEST_F(AttentionGpuTest, AgreesWithTheCpuWhereAllIsVisible) {
  for (AttentionSizes sizes : std::vector<AttentionSizes>{{1, 8, 2, 256, 256, 128},
                                                          {1, 4, 1, 512, 1536, 128},
                                                          {1, 4, 2, 1024, 384, 64},
                                                          {2, 4, 2, 77, 333, 96},
                                                          {1, 4, 4, 130, 40, 64}}) {
    sizes.visible = Visible::all;
    expect_agreement(sizes);
  }
}

// The windows are shorter than a tile, several tiles long, one key shorter than the sequence, as long as it, and longer. The
// queries are whole sequences, or chunks whose keys are as many as the window shows, more or fewer.
TEST_F(AttentionGpuTest, AgreesWithTheCpuOnWindows) {
  const auto windowed = [](AttentionSizes sizes, std::int64_t window) {
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

// The scratch that cuDNN itself asks for is checked where a plan is made.
TEST_F(AttentionGpuTest, TakesNoMoreScratchThanPlanned) {
  for (const AttentionSizes& sizes : std::vector<AttentionSizes>{{1, 8, 2, 4096, 4096, 64, true},
                                                                 {1, 8, 2, 4096, 4096, 128, true},
                                                                 {8, 4, 4, 1001, 1001, 96, true},
                                                                 {8, 4, 4, 1001, 1001, 96},
                                                                 {8, 16, 4, 1001, 1001, 128},
                                                                 {1, 8, 2, 500, 9000, 192, true},
                                                                 {1, 8, 2, 500, 9000, 64},
                                                                 {1, 8, 2, 4096, 4096, 128, false, 1024},
                                                                 {1, 8, 2, 4096, 4096, 128, true, 1024},
                                                                 {1, 8, 2, 1024, 2047, 128, false, 1024},
                                                                 {1, 8, 2, 1024, 2047, 128, true, 1024},
                                                                 {1, 32, 8, 2048, 14336, 128, false, 0, Visible::all},
                                                                 {1, 32, 8, 4096, 2048, 128, false, 0, Visible::all},
                                                                 {1, 8, 2, 4096, 500, 128, true, 0, Visible::all},
                                                                 {4, 32, 8, 2048, 2048, 128}}) {
    const auto meta = make_meta_device(DeviceKind::cuda);
    const auto meta_stream = meta->make_stream();
    Arena planned(*meta, MemoryCategory::workspace, 0), taken(*gpu, MemoryCategory::workspace, std::size_t{1} << 30);
    const Operands x = operands(sizes);
    attention_forward(*meta_stream, planned, x.forward(&Twin::gpu));
    attention_backward(*meta_stream, planned, x.backward(&Twin::gpu));
    EXPECT_NO_THROW(attention_forward(*gpu_stream, taken, x.forward(&Twin::gpu))) << sizes.text();
    EXPECT_NO_THROW(attention_backward(*gpu_stream, taken, x.backward(&Twin::gpu))) << sizes.text();
    gpu_stream->synchronize();
    EXPECT_EQ(taken.high_water(), planned.high_water()) << sizes.text();
  }
}

// A tile that reaches beyond the end of a sequence does not see the next one.
TEST_F(AttentionGpuTest, NanStaysInItsSequence) {
  for (const std::int64_t tokens : {40, 200}) {
    const AttentionSizes sizes{2, 4, 2, tokens, tokens, 64};
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
  const auto meta_stream = meta->make_stream();
  Arena scratch(*meta, MemoryCategory::workspace, 0);
  const auto refused_with = [&](const AttentionForward& op) {
    try {
      attention_forward(*meta_stream, scratch, op);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::done;
  };
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 16, 64}).forward(&Twin::gpu)), ExitCode::done);
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 16, 12}).forward(&Twin::gpu)), ExitCode::config);
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 16, 264}).forward(&Twin::gpu)), ExitCode::config);
  EXPECT_EQ(refused_with(operands({1, 2, 1, 16, 8, 64}).forward(&Twin::gpu)), ExitCode::internal);
  AttentionSizes all{1, 2, 1, 64, 192, 64};
  all.visible = Visible::all;
  const Operands x = operands(all);
  EXPECT_EQ(refused_with(x.forward(&Twin::gpu)), ExitCode::done);
  EXPECT_THROW(attention_backward(*meta_stream, scratch, x.backward(&Twin::gpu)), Error);
}

}  // namespace
}  // namespace octet::testing
