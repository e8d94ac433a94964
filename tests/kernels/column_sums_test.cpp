#include "octet/kernels/column_sums/column_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::compute_roundoff;
using testing::near;
using testing::storage_roundoff;
using testing::values_of;

struct ColumnSumsTest : testing::OpTest {};

TEST_F(ColumnSumsTest, AddTheRows) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const DType sum : testing::kFloatTypes) {
      for (const std::int64_t rows : {1, 16, 17, 1100}) {
        const std::int64_t cols = rows == 17 ? 600 : 7;
        const Tensor packed = random(dtype, {rows, cols + 3}), y = random(sum, {cols});
        const auto x = values_of(packed);
        std::vector<double> expected = values_of(y), size = expected;
        for (double& s : size) s = std::abs(s);
        for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
          for (std::size_t i = 0; i < expected.size(); ++i) {
            expected[i] += x[t * (expected.size() + 3) + 1 + i];
            size[i] += std::abs(x[t * (expected.size() + 3) + 1 + i]);
          }
        }
        column_sums(*stream, scratch, {.x = packed.slice_cols(1, 1 + cols), .y = y});
        const double roundoff = compute_roundoff(dtype);
        EXPECT_TRUE(near(values_of(y), expected,
                         [&](std::size_t i) {
                           return gamma(static_cast<double>(rows) + 1, roundoff) * size[i] +
                                  storage_roundoff(sum) * (1 + roundoff) * std::abs(expected[i]);
                         }))
            << name_of(dtype) << " to " << name_of(sum) << ", " << rows << " rows";
        EXPECT_EQ(scratch.used(), 0u);
      }
    }
  }
}

TEST_F(ColumnSumsTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : testing::kFloatTypes) {
    const Tensor x = random(dtype, {1500, 700});
    expect_same_for_any_threads([&] {
      const Tensor y = zeros(DType::f32, {700});
      column_sums(*stream, scratch, {.x = x, .y = y});
      return std::vector<Tensor>{y};
    });
  }
}

TEST_F(ColumnSumsTest, MetaAllocatesWhatCpuDoes) {
  const Tensor x = random(DType::bf16, {1300, 40}), y = zeros(DType::f32, {40});
  column_sums(*stream, scratch, {.x = x, .y = y});
  column_sums(*meta_stream, meta_scratch, {.x = x, .y = y});
  EXPECT_GT(scratch.high_water(), 0u);
  EXPECT_EQ(meta_scratch.high_water(), scratch.high_water());
}

TEST_F(ColumnSumsTest, RefusesWhatDoesNotFit) {
  expect_refusal(
      [&] {
        column_sums(*stream, scratch, {.x = zeros(DType::f32, {4, 8}), .y = zeros(DType::f32, {9})});
      },
      "y must be [8], got [9]");
}

}  // namespace
}  // namespace octet::kernels
