#include "octet/kernels/column_sums/column_sums.h"

#include <cmath>
#include <vector>

#include "gpu/twins.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

struct ColumnSumsGpuTest : testing::TwinTest {};

TEST_F(ColumnSumsGpuTest, AgreeWithTheCpu) {
  struct Size {
    std::int64_t rows, cols, gap;
  };
  for (const Size& size : {Size{1, 1, 0}, Size{5, 200, 0}, Size{37, 45, 3}, Size{130, 1000, 8}, Size{8192, 1024, 0},
                           Size{1850, 3840, 0}, Size{400, 1025, 7}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Twin x = random(DType::bf16, {size.rows, size.cols + size.gap}), y = random(dtype, {size.cols});
      const auto values = values_of(x.cpu);
      std::vector<double> sizes = values_of(y.cpu);
      for (double& s : sizes) s = std::abs(s);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t col = i % static_cast<std::size_t>(size.cols + size.gap);
        if (col < sizes.size()) sizes[col] += std::abs(values[i]);
      }
      column_sums(*cpu_stream, cpu_scratch, {.x = x.cpu.slice_cols(0, size.cols), .y = y.cpu});
      column_sums(*gpu_stream, gpu_scratch, {.x = x.gpu.slice_cols(0, size.cols), .y = y.gpu});
      const auto expected = values_of(y.cpu);
      // Each side adds the same numbers in another order and rounds once.
      const double sums = gamma(static_cast<double>(size.rows) + 1, kUnitRoundoffF32);
      const double storage = dtype == DType::bf16 ? kUnitRoundoffBf16 : kUnitRoundoffF32;
      EXPECT_TRUE(near(values_of(fetch(y.gpu).view()), expected,
                       [&](std::size_t i) {
                         return 2 * (sums * sizes[i] + storage * (std::abs(expected[i]) + 2 * sums * sizes[i])) / (1 - storage);
                       }))
          << x.cpu.shape << " " << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace octet::kernels
