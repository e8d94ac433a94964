#include "octet/kernels/fill/fill.h"

#include "gpu/twins.h"

namespace octet::kernels {
namespace {

using testing::Twin;

class FillOnGpu : public testing::TwinTest {};

// F64 would show the smallest differences. It holds FP32 numbers here; a million of them would still show a difference.
TEST_F(FillOnGpu, HasTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const std::int64_t count : {1, 1000003}) {
      for (const std::int64_t first : {std::int64_t{0}, (std::int64_t{1} << 33) + 5}) {
        const Twin x = poisoned(dtype, {count});
        const auto op = [&](const Tensor& side) {
          return FillNormal{
              .x = side, .deviation = 0.02, .seed = 3, .subject = name_id("lm_head.weight"), .elements = {.first = first}};
        };
        fill_normal(*cpu_stream, op(x.cpu));
        fill_normal(*gpu_stream, op(x.gpu));
        expect_same_bytes(x, concat(name_of(dtype), " from ", first));
      }
    }
  }
}

TEST_F(FillOnGpu, WithoutDeviationIsTheMean) {
  const Twin x = poisoned(DType::f32, {4097});
  fill_normal(*cpu_stream, {.x = x.cpu, .mean = 1.0, .deviation = 0.0});
  fill_normal(*gpu_stream, {.x = x.gpu, .mean = 1.0, .deviation = 0.0});
  expect_same_bytes(x, "ones");
  EXPECT_EQ(testing::values_of(fetch(x.gpu).view()), std::vector<double>(4097, 1.0));
}

}  // namespace
}  // namespace octet::kernels
