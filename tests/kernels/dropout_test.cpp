#include "octet/kernels/dropout/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/op_fixture.h"

namespace octet::kernels {
namespace {

struct DropoutTest : testing::OpTest {
  Dropout key(const Tensor& x, const Tensor& y, double rate) {
    return {.x = x, .y = y, .rate = rate, .seed = 3, .subject = 11, .step = 5, .tokens = tokens(x.rows())};
  }
  // Numbers with and without the highest bit.
  Tensor tokens(std::int64_t rows) {
    std::vector<std::int32_t> numbers;
    for (std::int64_t i = 0; i < rows; ++i)
      numbers.push_back(static_cast<std::int32_t>(0x7FFFFFF0u + static_cast<std::uint32_t>(i)));
    return integers(numbers);
  }
  std::vector<double> mask(Dropout op, std::int64_t rows = 64, std::int64_t cols = 256) {
    op.x = filled(DType::f32, {rows, cols}, [](std::int64_t) { return 1.0; });
    op.y = zeros(DType::f32, {rows, cols});
    op.tokens = tokens(rows);
    dropout(*stream, op);
    return testing::values_of(op.y);
  }
};

// The mask of the contract, one element at a time.
bool keeps(const Dropout& op, std::int64_t row, std::int64_t col) {
  const std::uint64_t token = static_cast<std::uint32_t>(op.tokens.as<std::int32_t>()[row]);
  const std::int64_t feature = op.first_feature + col;
  const Philox4 words =
      Rng(op.seed, RngStream::dropout, op.subject)
          .words((token << 32) + static_cast<std::uint64_t>(op.first_expert << 20) + static_cast<std::uint64_t>(feature / 4),
                 op.step);
  return static_cast<double>(words[static_cast<std::size_t>(feature % 4)]) >= std::floor(op.rate * 4294967296.0);
}

TEST_F(DropoutTest, IsTheFormula) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t cols : {1, 6, 64, 131}) {
      for (const std::int64_t first_feature : {0, 3, 128}) {
        const Tensor wide = random(dtype, {9, cols + 5}), x = wide.slice_cols(2, cols + 2);
        const Tensor y = random(dtype, {9, cols}), before = copy(y);
        Dropout op = key(x, y, 0.4);
        op.first_feature = first_feature;
        op.first_expert = 6;
        dropout(*stream, op);
        const std::vector<double> from = testing::values_of(copy(x)), old = testing::values_of(before);
        const auto expect = [&](const char* what, const std::vector<double>& actual, auto value) {
          for (std::int64_t i = 0; i < x.elements(); ++i) {
            const auto at = static_cast<std::size_t>(i);
            ASSERT_EQ(actual[at], value(at, keeps(op, i / cols, i % cols)))
                << what << ", element " << i << " of " << cols << " columns";
          }
        };
        expect("overwritten", testing::values_of(y), [&](std::size_t i, bool kept) { return kept ? from[i] : 0.0; });
        op.y = before;
        op.adds = true;
        dropout(*stream, op);
        expect("added", testing::values_of(before), [&](std::size_t i, bool kept) {
          if (!kept) return old[i];
          const double sum = old[i] + from[i];
          if (dtype == DType::f64) return sum;
          const float rounded = static_cast<float>(old[i]) + static_cast<float>(from[i]);
          return static_cast<double>(dtype == DType::f32 ? rounded : static_cast<float>(BFloat16(rounded)));
        });
      }
    }
  }
}

// The number of zeros is binomial; six standard deviations are one case in 10^9.
TEST_F(DropoutTest, DropsTheShareThatIsAskedFor) {
  for (const double rate : {0.0, 0.05, 0.5, 0.9}) {
    const std::vector<double> values = mask(key({}, {}, rate), 512, 1024);
    const auto n = static_cast<double>(values.size());
    const double dropped = static_cast<double>(std::count(values.begin(), values.end(), 0.0));
    EXPECT_NEAR(dropped / n, rate, 6 * std::sqrt(rate * (1 - rate) / n));
  }
}

// Two masks of independent elements differ in half of them at a rate of 0.5.
TEST_F(DropoutTest, GivesEveryKeyAMaskOfItsOwn) {
  const Dropout one = key({}, {}, 0.5);
  std::vector<Dropout> others(5, one);
  others[0].seed = 4;
  others[1].subject = 12;
  others[2].step = 6;
  others[3].first_expert = 1;
  others[4].first_feature = 256;
  const std::vector<double> expected = mask(one);
  const auto n = static_cast<double>(expected.size());
  const auto differing = [&](const std::vector<double>& actual, std::size_t shift = 0) {
    double count = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) count += actual[i] != expected[(i + shift) % expected.size()];
    return count / n;
  };
  const double deviation = 6 * 0.5 / std::sqrt(n);
  for (std::size_t i = 0; i < others.size(); ++i) EXPECT_NEAR(differing(mask(others[i])), 0.5, deviation) << i;
  for (const std::size_t shift : {1, 2, 3, 4, 256, 512}) EXPECT_NEAR(differing(expected, shift), 0.5, deviation) << shift;
  EXPECT_EQ(differing(mask(one)), 0.0);
}

// Columns that ranks share out have the mask of the whole.
TEST_F(DropoutTest, OfPartsIsThatOfTheWhole) {
  const Tensor x = random(DType::bf16, {40, 96}), whole = zeros(DType::bf16, {40, 96}), parts = zeros(DType::bf16, {40, 96});
  Dropout op = key(x, whole, 0.3);
  dropout(*stream, op);
  for (const auto& [begin, end] : {std::pair{0, 24}, {24, 25}, {25, 96}}) {
    Dropout part = op;
    part.x = x.slice_cols(begin, end);
    part.y = parts.slice_cols(begin, end);
    part.first_feature = begin;
    dropout(*stream, part);
  }
  EXPECT_TRUE(testing::same_bytes(parts, whole));
}

TEST_F(DropoutTest, KnowsTheExpertsOfGroups) {
  const std::int64_t rows = 4 * kGroupRows;
  const RowGroups groups{
      .counts = integers({200, 100}), .first = integers({0, 256, 384}), .tiles = integers({0, 0, 1, -1}), .planned = rows};
  const Tensor x = random(DType::f32, {rows, 16}), y = filled(DType::f32, {rows, 16}, [](std::int64_t) { return 5.0; });
  Dropout op = key(x, y, 0.5);
  op.groups = groups;
  op.first_expert = 3;
  dropout(*stream, op);
  for (std::int64_t i = 0; i < y.elements(); ++i) {
    const std::int64_t row = i / 16;
    Dropout one = op;
    one.first_expert = row < 256 ? 3 : 4;
    const float expected = row >= 384 ? 5.0f : keeps(one, row, i % 16) ? x.as<float>()[i] : 0.0f;
    ASSERT_EQ(y.as<float>()[i], expected) << "row " << row << ", column " << i % 16;
  }
}

TEST_F(DropoutTest, IsTheSameForAnyNumberOfThreads) {
  const Tensor x = random(DType::bf16, {300, 200});
  expect_same_for_any_threads([&] {
    const Tensor y = zeros(DType::bf16, x.shape);
    dropout(*stream, key(x, y, 0.1));
    return std::vector<Tensor>{y};
  });
}

TEST_F(DropoutTest, RefusesWhatItCannotKey) {
  const Tensor x = zeros(DType::f32, {2, 8});
  const auto refused = [&](auto change, const char* text) {
    Dropout op = key(x, zeros(DType::f32, {2, 8}), 0.5);
    change(op);
    expect_refusal([&] { dropout(*stream, op); }, text);
  };
  refused([](Dropout& op) { op.rate = 1; }, "dropout: a rate of 1");
  refused([&](Dropout& op) { op.tokens = integers({1}); }, "dropout: tokens must be [2] I32");
  refused([&](Dropout& op) { op.y = zeros(DType::bf16, {2, 8}); }, "dropout: x ");
  refused([](Dropout& op) { op.first_expert = 1 << 12; }, "dropout: 4097 experts");
  refused([](Dropout& op) { op.first_feature = 1 << 22; }, "features");
}

}  // namespace
}  // namespace octet::kernels
