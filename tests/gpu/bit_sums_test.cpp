#include "octet/kernels/bit_sums/bit_sums.h"

#include <vector>

#include "gpu/twins.h"

namespace octet::kernels {
namespace {

using testing::Twin;

struct BitSumsGpuTest : testing::TwinTest {
  Twin random_bits(DType dtype, std::int64_t count) {
    const Twin t = zeros(dtype, {count});
    const Rng rng(5, RngStream::test, subject_++);
    for (std::size_t i = 0; i < t.cpu.bytes(); ++i) t.cpu.as_bytes()[i] = static_cast<std::uint8_t>(rng.word64(i));
    upload(t);
    return t;
  }

 private:
  std::uint32_t subject_ = 0;
};

TEST_F(BitSumsGpuTest, EqualThoseOfTheCpu) {
  std::vector<Tensor> on_cpu, on_gpu;
  const auto add = [&](const Twin& t) {
    on_cpu.push_back(t.cpu);
    on_gpu.push_back(t.gpu);
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::i32, DType::bf16, DType::f8_e4m3}) {
    for (const std::int64_t count : {0, 1, 7, 32768, 1000001}) add(random_bits(dtype, count));
  }
  const Twin unaligned = random_bits(DType::bf16, 1000);
  add({unaligned.cpu.slice_rows(3, 990), unaligned.gpu.slice_rows(3, 990)});

  std::vector<std::uint64_t> expected(on_cpu.size()), actual(on_cpu.size());
  bit_sums(*cpu_stream, {.x = {*cpu, on_cpu}, .sums = expected.data()});
  const Buffer sums = gpu->allocate(actual.size() * sizeof(std::uint64_t), MemoryCategory::workspace);
  bit_sums(*gpu_stream, {.x = {*gpu, on_gpu}, .sums = static_cast<std::uint64_t*>(sums.data())});
  gpu_stream->copy_to_host(actual.data(), sums.data(), actual.size() * sizeof(std::uint64_t));
  gpu_stream->synchronize();
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace octet::kernels
