#include "octet/kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"
#include "support/grad_check.h"

namespace octet::kernels {
namespace {

using testing::compute_roundoff;
using testing::near;
using testing::storage_roundoff;
using testing::values_of;

constexpr auto kInPlace = CrossEntropy::Gradient::in_place;

struct CrossEntropyTest : testing::OpTest {
  static DType real(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }
};

TEST_F(CrossEntropyTest, LossAndGradientAreTheFormula) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t vocabulary : {1, 2, 33, 256, 1100}) {
      const std::int64_t rows = 21;
      const Tensor logits = random(dtype, {rows, vocabulary}, 5.0), loss = zeros(real(dtype), {rows});
      std::vector<std::int32_t> targets;
      for (std::int64_t t = 0; t < rows; ++t) {
        targets.push_back(t % 5 == 3 ? kIgnoredTarget : static_cast<std::int32_t>((t * 31) % vocabulary));
      }
      const auto x = values_of(logits);
      const auto v = static_cast<std::size_t>(vocabulary);
      std::vector<double> expected, expected_size, gradient(x.size());
      for (std::size_t t = 0; t < targets.size(); ++t) {
        if (targets[t] == kIgnoredTarget) {
          expected.push_back(0);
          expected_size.push_back(0);
          continue;
        }
        const double* row = x.data() + t * v;
        double top = row[0], sum = 0;
        for (std::size_t i = 0; i < v; ++i) top = std::max(top, row[i]);
        for (std::size_t i = 0; i < v; ++i) sum += std::exp(row[i] - top);
        const auto target = static_cast<std::size_t>(targets[t]);
        expected.push_back(top + std::log(sum) - row[target]);
        expected_size.push_back(2 * (std::log(sum) + 1) + std::abs(top - row[target]));
        for (std::size_t i = 0; i < v; ++i) gradient[t * v + i] = std::exp(row[i] - top) / sum - (i == target ? 1.0 : 0.0);
      }
      cross_entropy(*stream, {.logits = logits, .targets = integers(targets), .loss = loss});
      EXPECT_TRUE(near(values_of(logits), x, [](std::size_t) { return 0.0; })) << "logits moved without being asked";
      // The sum has V terms of one sign. Each errs by the rounding of its exponent, which moves e^x by 40 u as |x - top| <= 40
      // here, and by 4 u for exp.
      const double u = compute_roundoff(dtype), relative = gamma(static_cast<double>(vocabulary) + 50, u);
      EXPECT_TRUE(near(values_of(loss), expected,
                       [&](std::size_t t) { return relative * std::min(1.0, expected_size[t]) + 4 * u * expected_size[t]; }))
          << name_of(dtype) << " V " << vocabulary;
      cross_entropy(*stream, {.logits = logits, .targets = integers(targets), .loss = loss, .gradient = kInPlace});
      EXPECT_TRUE(near(
          values_of(logits), gradient,
          [&](std::size_t i) {
            const std::size_t t = i / v;
            const bool at_target = targets[t] >= 0 && i % v == static_cast<std::size_t>(targets[t]);
            const double probability = gradient[i] + (at_target ? 1.0 : 0.0);
            return 2 * relative * probability + (at_target ? u : 0) + storage_roundoff(dtype) * std::abs(gradient[i]);
          },
          vocabulary))
          << name_of(dtype) << " V " << vocabulary;
    }
  }
}

TEST_F(CrossEntropyTest, GradientIsTheDerivative) {
  const std::int64_t rows = 3, vocabulary = 7;
  const Tensor logits = random(DType::f64, {rows, vocabulary}, 2.0), targets = integers({6, 0, kIgnoredTarget});
  const Tensor loss = zeros(DType::f64, {rows}), gradient = copy(logits);
  cross_entropy(*stream, {.logits = gradient, .targets = targets, .loss = loss, .gradient = kInPlace});
  const auto f = [&] {
    cross_entropy(*stream, {.logits = logits, .targets = targets, .loss = loss});
    return loss.as<double>()[0] + loss.as<double>()[1] + loss.as<double>()[2];
  };
  EXPECT_TRUE(testing::gradient_agrees(
      {.name = "logits", .x = logits.as<double>(), .gradient = gradient.as<double>(), .count = logits.elements(), .f = f}));
}

TEST_F(CrossEntropyTest, HostileLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::int64_t v = 20;
  // Row 0: huge, equal logits. 1: huge logits far apart. 2: one -inf. 3: a NaN. 4: a +inf. 5: a NaN in an ignored row.
  const Tensor logits = filled(DType::f32, {6, v}, [&](std::int64_t i) {
    const std::int64_t row = i / v, column = i % v;
    if (row == 0) return 3e38;
    if (row == 1) return column == 4 ? 3e38 : -3e38;
    if (row == 2) return column == 4 ? -std::numeric_limits<double>::infinity() : 1.0;
    if (row == 3 || row == 5) return column == 19 ? std::nan("") : 0.0;
    return column == 2 ? static_cast<double>(inf) : 0.0;
  });
  const Tensor targets = integers({0, 4, 4, 1, 1, kIgnoredTarget}), loss = zeros(DType::f32, {6});
  cross_entropy(*stream, {.logits = logits, .targets = targets, .loss = loss, .gradient = kInPlace});
  const float* l = loss.as<float>();
  EXPECT_NEAR(l[0], std::log(20.0f), 4 * kUnitRoundoffF32 * 3);
  EXPECT_EQ(l[1], 0.0f);
  EXPECT_EQ(l[2], inf);
  EXPECT_TRUE(std::isnan(l[3]));
  EXPECT_TRUE(std::isnan(l[4]));
  EXPECT_EQ(l[5], 0.0f);
  const float* g = logits.as<float>();
  EXPECT_NEAR(g[0], 1.0f / 20 - 1, 8 * kUnitRoundoffF32);
  EXPECT_NEAR(g[1], 1.0f / 20, 8 * kUnitRoundoffF32);
  for (std::int64_t i = 0; i < v; ++i) {
    EXPECT_EQ(g[v + i], 0.0f) << i;
    EXPECT_TRUE(std::isnan(g[3 * v + i])) << i;
    EXPECT_EQ(g[5 * v + i], 0.0f) << i;
  }
  EXPECT_EQ(g[2 * v + 4], -1.0f);
}

TEST_F(CrossEntropyTest, RefusesTargetsOutsideTheVocabularyBeforeTouchingAnything) {
  const Tensor logits = random(DType::f32, {3, 8}), before = copy(logits), loss = zeros(DType::f32, {3});
  expect_refusal(
      [&] {
        cross_entropy(*stream, {.logits = logits, .targets = integers({0, 1, 8}), .loss = loss, .gradient = kInPlace});
      },
      "target 8 of token 2");
  expect_refusal(
      [&] {
        cross_entropy(*stream, {.logits = logits, .targets = integers({0, -1, 2}), .loss = loss, .gradient = kInPlace});
      },
      "target -1 of token 1");
  expect_refusal(
      [&] {
        cross_entropy(*stream, {.logits = logits, .targets = integers({0, 1}), .loss = loss});
      },
      "must be I32 [3]");
  EXPECT_TRUE(testing::same_bytes(logits, before));
}

TEST_F(CrossEntropyTest, BitsDoNotDependOnThreadsOrChunks) {
  for (const DType dtype : testing::kFloatTypes) {
    const std::int64_t rows = 90, vocabulary = 700;
    const Tensor start = random(dtype, {rows, vocabulary}, 3.0);
    std::vector<std::int32_t> ids;
    for (std::int32_t t = 0; t < rows; ++t) ids.push_back(t % 11 == 0 ? kIgnoredTarget : t * 7);
    const Tensor targets = integers(ids);
    expect_same_for_any_threads([&] {
      const Tensor logits = copy(start), loss = zeros(real(dtype), {rows}), total = zeros(DType::f64, {2});
      cross_entropy(*stream, {.logits = logits, .targets = targets, .loss = loss, .gradient = kInPlace});
      loss_sum(*stream, {.loss = loss, .targets = targets, .total = total.as<double>()});
      return std::vector<Tensor>{logits, loss, total};
    });
    const Tensor whole = copy(start), cut = copy(start), loss = zeros(real(dtype), {rows});
    cross_entropy(*stream, {.logits = whole, .targets = targets, .loss = loss, .gradient = kInPlace});
    for (std::int64_t begin = 0; begin < rows; begin += 37) {
      const std::int64_t end = std::min(rows, begin + 37);
      cross_entropy(*stream, {.logits = cut.slice_rows(begin, end),
                              .targets = targets.slice_rows(begin, end),
                              .loss = loss.slice_rows(begin, end),
                              .gradient = kInPlace});
    }
    EXPECT_TRUE(testing::same_bytes(cut, whole)) << name_of(dtype);
  }
}

TEST_F(CrossEntropyTest, LossSumAddsInF64AndCountsTokens) {
  const Tensor loss =
      filled(DType::f32, {4}, [](std::int64_t i) { return i == 2 ? 0.0 : 0x1p-30 + static_cast<double>(i == 0); });
  const Tensor total = zeros(DType::f64, {2});
  total.as<double>()[0] = 0.5;
  total.as<double>()[1] = 10;
  loss_sum(*stream, {.loss = loss, .targets = integers({0, 5, kIgnoredTarget, 1}), .total = total.as<double>()});
  EXPECT_EQ(total.as<double>()[0], 0.5 + (static_cast<double>(static_cast<float>(1.0 + 0x1p-30)) + 2 * 0x1p-30));
  EXPECT_EQ(total.as<double>()[1], 13.0);
}

// Combining the statistics of a part rounds once for each addition, exp and rescaling. This adds 8 u for each part to the bound
// of the whole.
TEST_F(CrossEntropyTest, PartsAreTheWhole) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t parts : {1, 2, 4}) {
      const std::int64_t rows = 23, width = 75, vocabulary = parts * width;
      const Tensor logits = random(dtype, {rows, vocabulary}, 5.0);
      std::vector<std::int32_t> ids;
      for (std::int64_t t = 0; t < rows; ++t) {
        ids.push_back(t % 5 == 3 ? kIgnoredTarget : static_cast<std::int32_t>((t * 31) % vocabulary));
      }
      const Tensor targets = integers(ids), loss = zeros(real(dtype), {rows}), whole = copy(logits);
      cross_entropy(*stream, {.logits = whole, .targets = targets, .loss = loss, .gradient = kInPlace});
      const Tensor statistics = zeros(real(dtype), {3 * parts, rows}), cut = copy(logits);
      const auto part_of = [&](std::int64_t p) { return cut.slice_cols(p * width, (p + 1) * width); };
      for (std::int64_t p = 0; p < parts; ++p) {
        softmax_statistics(*stream, {.logits = part_of(p),
                                     .targets = targets,
                                     .first = p * width,
                                     .statistics = statistics.slice_rows(3 * p, 3 * p + 3)});
      }
      for (std::int64_t p = 0; p < parts; ++p) {
        const Tensor of_part = zeros(real(dtype), {rows});
        cross_entropy_of_part(*stream, {.logits = part_of(p),
                                        .targets = targets,
                                        .first = p * width,
                                        .vocabulary = vocabulary,
                                        .statistics = statistics,
                                        .loss = of_part,
                                        .gradient = kInPlace});
        const double relative = gamma(static_cast<double>(vocabulary + 8 * parts) + 50, compute_roundoff(dtype));
        const std::vector<double> expected = values_of(loss);
        EXPECT_TRUE(near(values_of(of_part), expected, [&](std::size_t t) { return relative * (1 + std::abs(expected[t])); }));
        if (parts == 1) {
          EXPECT_TRUE(testing::same_bytes(of_part, loss)) << name_of(dtype);
        }
      }
      const std::vector<double> expected = values_of(whole);
      const double relative = 2 * gamma(static_cast<double>(vocabulary + 8 * parts) + 50, compute_roundoff(dtype));
      EXPECT_TRUE(near(
          values_of(cut), expected, [&](std::size_t i) { return relative + 2 * storage_roundoff(dtype) * std::abs(expected[i]); },
          vocabulary))
          << name_of(dtype) << " in " << parts;
      if (parts == 1) {
        EXPECT_TRUE(testing::same_bytes(cut, whole)) << name_of(dtype);
      }
    }
  }
}

// A part without a finite logit contributes nothing. A NaN in any part makes the loss NaN on all parts.
TEST_F(CrossEntropyTest, PartsTakeHostileLogits) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor logits = filled(DType::f32, {2, 4}, [&](std::int64_t i) {
    return i == 2 ? std::nan("") : i < 4 ? 0.0 : i < 6 ? -inf : 1.0;
  });
  const Tensor targets = integers({0, 3}), statistics = zeros(DType::f32, {6, 2}), loss = zeros(DType::f32, {2});
  for (std::int64_t p = 0; p < 2; ++p) {
    softmax_statistics(*stream, {.logits = logits.slice_cols(2 * p, 2 * p + 2),
                                 .targets = targets,
                                 .first = 2 * p,
                                 .statistics = statistics.slice_rows(3 * p, 3 * p + 3)});
  }
  const auto part = [&](std::int64_t p) {
    cross_entropy_of_part(*stream, {.logits = logits.slice_cols(2 * p, 2 * p + 2),
                                    .targets = targets,
                                    .first = 2 * p,
                                    .vocabulary = 4,
                                    .statistics = statistics,
                                    .loss = loss,
                                    .gradient = kInPlace});
  };
  part(0);
  part(1);
  EXPECT_TRUE(std::isnan(values_of(loss)[0]));
  EXPECT_NEAR(values_of(loss)[1], std::log(2.0), 4 * kUnitRoundoffF32);
  EXPECT_EQ(logits.as<float>()[4], 0.0f);
  EXPECT_NEAR(static_cast<double>(logits.as<float>()[7]), -0.5, 4 * kUnitRoundoffF32);
  expect_refusal(
      [&] {
        cross_entropy_of_part(
            *stream, {.logits = logits, .targets = targets, .first = 1, .vocabulary = 4, .statistics = statistics, .loss = loss});
      },
      "columns [1, 5) of 4");
}

}  // namespace
}  // namespace octet::kernels
