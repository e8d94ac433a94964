#include "octet/kernels/channel_amaxes/channel_amaxes.h"

#include "gpu/fused.h"

namespace octet::kernels {
namespace {

struct ChannelAmaxesGpuTest : testing::FusedTest {};

TEST_F(ChannelAmaxesGpuTest, AreThoseOfTheCpu) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t rows : {1, 63, 300}) {
      for (const std::int64_t cols : {1, 31, 300, 4096}) {
        const testing::Twin x = random(dtype, {rows, cols}), y = poisoned(DType::f32, {cols});
        channel_amaxes(*cpu_stream, {.x = x.cpu, .y = y.cpu});
        channel_amaxes(*gpu_stream, {.x = x.gpu, .y = y.gpu});
        expect_same_bytes(y, concat(rows, " rows, ", cols, " columns"));
      }
    }
  }
}

}  // namespace
}  // namespace octet::kernels
