#include "octet/kernels/dropout/dropout.h"

#include "gpu/twins.h"

namespace octet::kernels {
namespace {

using testing::Twin;

class DropoutOnGpu : public testing::TwinTest {
 protected:
  Twin integers(const std::vector<std::int32_t>& values) {
    const Twin result = zeros(DType::i32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), result.cpu.as<std::int32_t>());
    upload(result);
    return result;
  }
};

TEST_F(DropoutOnGpu, HasTheBitsOfTheCpu) {
  constexpr std::int64_t kRows = 3 * kGroupRows;
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < kRows; ++i)
    numbers.push_back(static_cast<std::int32_t>(0x7FFFFF00u + static_cast<std::uint32_t>(i)));
  const Twin tokens = integers(numbers), counts = integers({70, 9}), first = integers({0, 128, 256}),
             tiles = integers({0, 1, -1});
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t cols : {8, 20, 33, 2048, 4100}) {
      for (const std::int64_t first_feature : {0, 2, 512}) {
        for (const bool adds : {false, true}) {
          for (const bool grouped : {false, true}) {
            const Twin x = random(dtype, {kRows, cols}), y = random(dtype, {kRows, cols});
            const auto op = [&](Tensor Twin::*on) {
              Dropout result{.x = x.*on,
                             .y = y.*on,
                             .adds = adds,
                             .rate = 0.3,
                             .seed = 17,
                             .subject = 9,
                             .step = 4,
                             .tokens = tokens.*on,
                             .first_feature = first_feature};
              if (grouped) {
                result.groups = {.counts = counts.*on, .first = first.*on, .tiles = tiles.*on, .planned = kRows};
                result.first_expert = 2;
              }
              return result;
            };
            dropout(*cpu_stream, op(&Twin::cpu));
            dropout(*gpu_stream, op(&Twin::gpu));
            expect_same_bytes(y, concat(name_of(dtype), ", ", cols, " columns from ", first_feature, adds ? ", added" : "",
                                        grouped ? ", in groups" : ""));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::kernels
