#include "octet/kernels/norm/norm.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gpu/twins.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::Twin;

class SumSquaresOnGpu : public testing::TwinTest {
 protected:
  // 0.5 plus the sum of squares, on each side.
  struct Sums {
    double cpu, gpu;
  };
  Sums sums(const Twin& x) {
    const Twin total = filled(DType::f64, {1}, [](std::int64_t) { return 0.5; });
    sum_squares(*cpu_stream, cpu_scratch, {.x = {*this->cpu, {x.cpu}}, .total = total.cpu.as<double>()});
    sum_squares(*gpu_stream, gpu_scratch, {.x = {*this->gpu, {x.gpu}}, .total = total.gpu.as<double>()});
    return {total.cpu.as<double>()[0], testing::values_of(fetch(total.gpu).view())[0]};
  }
};

TEST_F(SumSquaresOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t count : {1, 7, 8, 255, 32767, 32768, 32769, 1000003}) {
      const Twin x = random(dtype, {count + 1}, 1e18);
      // Squares of FP32 numbers are exact in F64. Their sum has terms of one sign, so its relative error is at most gamma in any
      // order.
      const double relative = 2 * gamma(static_cast<double>(count), kUnitRoundoffF64);
      const Sums whole = sums(x), part = sums({x.cpu.slice_rows(1, count + 1), x.gpu.slice_rows(1, count + 1)});
      EXPECT_NEAR(whole.gpu, whole.cpu, relative * whole.cpu) << name_of(dtype) << " " << count;
      EXPECT_NEAR(part.gpu, part.cpu, relative * part.cpu) << name_of(dtype) << " " << count;
      EXPECT_EQ(sums(x).gpu, whole.gpu) << "a second sum has other bits";
    }
  }
}

// Sums many tensors in one launch. They have both dtypes, and some are empty or not aligned.
TEST_F(SumSquaresOnGpu, OfManyTensorsAgreesWithTheCpu) {
  std::vector<Tensor> cpu, gpu;
  double elements = 0;
  for (std::int64_t i = 0; i < 230; ++i) {
    const std::int64_t count = i % 50 == 7 ? 0 : i % 9 == 0 ? 70000 + i : 1 + 37 * i;
    const Twin x = random(i % 3 == 0 ? DType::f32 : DType::bf16, {count + 1});
    const std::int64_t first = i % 4 == 1 ? 1 : 0;
    cpu.push_back(x.cpu.slice_rows(first, first + count));
    gpu.push_back(x.gpu.slice_rows(first, first + count));
    elements += static_cast<double>(count);
  }
  const Twin total = filled(DType::f64, {1}, [](std::int64_t) { return 0.5; });
  sum_squares(*cpu_stream, cpu_scratch, {.x = {*this->cpu, cpu}, .total = total.cpu.as<double>()});
  sum_squares(*gpu_stream, gpu_scratch, {.x = {*this->gpu, gpu}, .total = total.gpu.as<double>()});
  const double expected = total.cpu.as<double>()[0];
  EXPECT_NEAR(testing::values_of(fetch(total.gpu).view())[0], expected, 2 * gamma(elements, kUnitRoundoffF64) * expected);
}

TEST_F(SumSquaresOnGpu, LosesNoHostileValue) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto one = [&](double hostile) {
    return sums(filled(DType::f32, {100000}, [=](std::int64_t i) { return i == 77777 ? hostile : 0.0; })).gpu;
  };
  EXPECT_EQ(one(-inf), inf);
  EXPECT_TRUE(std::isnan(one(std::nan(""))));
  const double largest = std::numeric_limits<float>::max(), smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(one(-largest), largest * largest);
  EXPECT_EQ(one(smallest), 0.5);
  EXPECT_EQ(one(0.0), 0.5);
}

}  // namespace
}  // namespace octet::kernels
