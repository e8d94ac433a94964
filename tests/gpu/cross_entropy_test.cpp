#include "octet/kernels/cross_entropy/cross_entropy.h"

#include <cmath>
#include <limits>

#include "gpu/twins.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::Twin;
using testing::values_of;

constexpr auto kInPlace = CrossEntropy::Gradient::in_place;

class CrossEntropyOnGpu : public testing::TwinTest {
 protected:
  static Twin columns(const Twin& t, std::int64_t begin, std::int64_t end) {
    return {t.cpu.slice_cols(begin, end), t.gpu.slice_cols(begin, end)};
  }
  Twin targets(std::int64_t rows, std::int64_t vocabulary) {
    const Twin t = tokens(rows, vocabulary);
    for (std::int64_t i = 3; i < rows; i += 5) t.cpu.as<std::int32_t>()[i] = kIgnoredTarget;
    upload(t);
    return t;
  }
  void run(const Twin& logits, const Twin& targets, const Twin& loss, CrossEntropy::Gradient gradient) {
    cross_entropy(*cpu_stream, {.logits = logits.cpu, .targets = targets.cpu, .loss = loss.cpu, .gradient = gradient});
    cross_entropy(*gpu_stream, {.logits = logits.gpu, .targets = targets.gpu, .loss = loss.gpu, .gradient = gradient});
  }
};

TEST_F(CrossEntropyOnGpu, LossAndGradientAgreeWithTheCpu) {
  for (const std::int64_t vocabulary : {1, 2, 9, 33, 256, 1100, 4101, 32000, 40001, 128256, 270001}) {
    for (const std::int64_t offset : {0, 3}) {
      const std::int64_t rows = vocabulary > 5000 ? 7 : 40;
      const Twin whole = random(DType::bf16, {rows, vocabulary + 2 * offset}, 5.0);
      const Twin logits = columns(whole, offset, offset + vocabulary), to = targets(rows, vocabulary);
      const Twin loss = poisoned(DType::f32, {rows});
      const std::string what = concat("V ", vocabulary, " offset ", offset);
      // On the GPU a term of the sum goes through e^x with |x| <= 60 (2 + 1.2 |x| units of error), at most V / 512 + 16
      // additions, and V / 4096 + 16 rescalings whose exponents add up to at most |x|. On the CPU it goes through e^x and V / 512
      // + 40 additions.
      const double relative = gamma(static_cast<double>(vocabulary) / 128 + 300, kUnitRoundoffF32);
      const testing::Tolerance loss_tolerance{.absolute = relative, .relative = 4 * kUnitRoundoffF32};

      const HostTensor before = fetch(whole.gpu);
      run(logits, to, loss, CrossEntropy::Gradient::none);
      expect_near(loss, loss_tolerance, what);
      expect_same_bytes(before.view(), whole.gpu, what + ": logits moved without being asked");

      run(logits, to, loss, kInPlace);
      expect_near(loss, loss_tolerance, what + " with gradient");
      const std::vector<double> expected = values_of(logits.cpu);
      const auto allowed = [&](std::size_t i) {
        const auto row = i / static_cast<std::size_t>(vocabulary), column = i % static_cast<std::size_t>(vocabulary);
        const bool at_target = to.cpu.as<std::int32_t>()[row] == static_cast<std::int32_t>(column);
        return (2 * relative + 2 * kUnitRoundoffBf16) * std::abs(expected[i]) + (at_target ? 2 * relative : 0x1p-132);
      };
      EXPECT_TRUE(testing::near(values_of(fetch(logits.gpu).view()), expected, allowed, vocabulary)) << what;
      if (offset > 0) {
        expect_same_bytes(columns(whole, 0, offset), what + ": left of the logits");
        expect_same_bytes(columns(whole, offset + vocabulary, vocabulary + 2 * offset), what + ": right of the logits");
      }
    }
  }
}

TEST_F(CrossEntropyOnGpu, HostileLogitsAgreeWithTheCpu) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::int64_t v : {20, 3000}) {
    // The rows are: huge equal logits; huge different ones; one -inf; all but one -inf; a NaN; a +inf; all -inf; a NaN in a row
    // that is ignored.
    const Twin logits = filled(DType::bf16, {8, v}, [&](std::int64_t i) {
      const std::int64_t row = i / v, column = i % v;
      switch (row) {
        case 0:
          return 3e38;
        case 1:
          return column == 4 ? 3e38 : -3e38;
        case 2:
          return column == 4 ? -inf : 1.0;
        case 3:
          return column == 19 ? 2.0 : -inf;
        case 4:
        case 7:
          return column == 19 ? std::nan("") : 0.0;
        case 5:
          return column == 2 ? inf : 0.0;
        default:
          return -inf;
      }
    });
    const Twin to = zeros(DType::i32, {8}), loss = poisoned(DType::f32, {8});
    const std::int32_t ids[] = {0, 4, 4, 19, 1, 1, 1, kIgnoredTarget};
    std::memcpy(to.cpu.data, ids, sizeof ids);
    upload(to);
    run(logits, to, loss, kInPlace);
    const double relative = gamma(static_cast<double>(v) / 128 + 300, kUnitRoundoffF32);
    expect_near(loss, {.absolute = relative, .relative = relative}, "loss");
    expect_near(logits, {.relative = 2 * relative + 2 * kUnitRoundoffBf16}, "gradient");
  }
}

TEST_F(CrossEntropyOnGpu, ATargetOutsideTheVocabularyMakesTheLossNan) {
  const Twin logits = random(DType::bf16, {2, 100}), to = zeros(DType::i32, {2}), loss = zeros(DType::f32, {2});
  to.cpu.as<std::int32_t>()[0] = 100;
  to.cpu.as<std::int32_t>()[1] = -1;
  upload(to);
  cross_entropy(*gpu_stream, {.logits = logits.gpu, .targets = to.gpu, .loss = loss.gpu, .gradient = kInPlace});
  for (const double value : values_of(fetch(loss.gpu).view())) EXPECT_TRUE(std::isnan(value));
}

TEST_F(CrossEntropyOnGpu, SumsLossesInAFixedOrder) {
  for (const std::int64_t count : {1, 31, 1024, 65537}) {
    const Twin loss = random(DType::f32, {count}, 3.0), to = targets(count, 50);
    const Twin total = filled(DType::f64, {2}, [](std::int64_t i) { return i == 0 ? 0.25 : 3.0; }),
               again = zeros(DType::f64, {2});
    loss_sum(*cpu_stream, {.loss = loss.cpu, .targets = to.cpu, .total = total.cpu.as<double>()});
    loss_sum(*gpu_stream, {.loss = loss.gpu, .targets = to.gpu, .total = total.gpu.as<double>()});
    double size = 0.25;
    for (const double value : values_of(loss.cpu)) size += std::abs(value);
    const auto actual = values_of(fetch(total.gpu).view()), expected = values_of(total.cpu);
    EXPECT_NEAR(actual[0], expected[0], 2 * gamma(static_cast<double>(count), kUnitRoundoffF64) * size) << count;
    EXPECT_EQ(actual[1], expected[1]) << count;
    loss_sum(*gpu_stream, {.loss = loss.gpu, .targets = to.gpu, .total = again.gpu.as<double>()});
    const auto first = values_of(fetch(again.gpu).view());
    gpu_stream->zero(again.gpu.data, again.gpu.bytes());
    loss_sum(*gpu_stream, {.loss = loss.gpu, .targets = to.gpu, .total = again.gpu.as<double>()});
    EXPECT_EQ(values_of(fetch(again.gpu).view()), first);
  }
}

TEST_F(CrossEntropyOnGpu, PartsOfTheVocabularyAgreeWithTheCpu) {
  for (const std::int64_t width : {1, 9, 33, 1100, 16032, 40001}) {
    const std::int64_t rows = 20, parts = 3, vocabulary = parts * width;
    const Twin logits = random(DType::bf16, {rows, vocabulary}, 5.0), to = targets(rows, vocabulary);
    const Twin statistics = zeros(DType::f32, {3 * parts, rows}), loss = poisoned(DType::f32, {rows});
    const double relative = gamma(static_cast<double>(vocabulary) / 128 + 400, kUnitRoundoffF32);
    const auto part_of = [&](const Tensor& x, std::int64_t p) { return x.slice_cols(p * width, (p + 1) * width); };
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto one = [&](Stream& stream, Tensor Twin::*side) {
        softmax_statistics(stream, {.logits = part_of(logits.*side, p),
                                    .targets = to.*side,
                                    .first = p * width,
                                    .statistics = (statistics.*side).slice_rows(3 * p, 3 * p + 3)});
      };
      one(*cpu_stream, &Twin::cpu);
      one(*gpu_stream, &Twin::gpu);
    }
    expect_near(statistics, {.relative = relative}, concat("statistics of ", width));
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto one = [&](Stream& stream, Tensor Twin::*side) {
        cross_entropy_of_part(stream, {.logits = part_of(logits.*side, p),
                                       .targets = to.*side,
                                       .first = p * width,
                                       .vocabulary = vocabulary,
                                       .statistics = statistics.*side,
                                       .loss = loss.*side,
                                       .gradient = kInPlace});
      };
      one(*cpu_stream, &Twin::cpu);
      one(*gpu_stream, &Twin::gpu);
      expect_near(loss, {.absolute = relative, .relative = 4 * kUnitRoundoffF32}, concat("loss of ", width));
    }
    const std::vector<double> expected = values_of(logits.cpu);
    const auto allowed = [&](std::size_t i) {
      const auto row = i / static_cast<std::size_t>(vocabulary), column = i % static_cast<std::size_t>(vocabulary);
      const bool at_target = to.cpu.as<std::int32_t>()[row] == static_cast<std::int32_t>(column);
      return (2 * relative + 2 * kUnitRoundoffBf16) * std::abs(expected[i]) + (at_target ? 2 * relative : 0x1p-132);
    };
    EXPECT_TRUE(testing::near(values_of(fetch(logits.gpu).view()), expected, allowed, vocabulary)) << width;
  }
}

}  // namespace
}  // namespace octet::kernels
