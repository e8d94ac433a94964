#include "octet/kernels/row_cosines/row_cosines.h"

#include "gpu/fused.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

struct RowCosinesGpuTest : testing::FusedTest {};

// Both are cosines of the same values; the GPU sums D products in FP32.
TEST_F(RowCosinesGpuTest, AreThoseOfTheCpu) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t cols : {1, 31, 300, 4096}) {
      const testing::Twin x = random(dtype, {2 * 45, cols}), y = poisoned(DType::f32, {45});
      row_cosines(*cpu_stream, {.x = x.cpu, .y = y.cpu});
      row_cosines(*gpu_stream, {.x = x.gpu, .y = y.gpu});
      expect_near(y, {.absolute = gamma(static_cast<double>(cols) + 8, kUnitRoundoffF32)}, concat(cols, " columns"));
    }
  }
}

}  // namespace
}  // namespace octet::kernels
