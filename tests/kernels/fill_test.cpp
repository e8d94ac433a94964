#include "octet/kernels/fill/fill.h"

#include <gtest/gtest.h>

#include "kernels/op_fixture.h"

namespace octet::kernels {
namespace {

using testing::same_bytes;

struct FillTest : testing::OpTest {};

TEST_F(FillTest, IsARoundedFunctionOfTheGlobalElement) {
  const std::int64_t count = 5000, first = (std::int64_t{1} << 33) + 3;
  const Rng rng(5, RngStream::init, 77);
  for (const DType dtype : testing::kFloatTypes) {
    const Tensor x = zeros(dtype, {count});
    fill_normal(*stream, {.x = x, .mean = 0.25, .deviation = 0.02, .seed = 5, .subject = 77, .elements = {.first = first}});
    const Tensor expected = filled(dtype, {count}, [&](std::int64_t i) {
      return static_cast<float>(0.25 + 0.02 * rng.normal(static_cast<std::uint64_t>(first + i)));
    });
    EXPECT_TRUE(same_bytes(x, expected)) << name_of(dtype);
  }
}

TEST_F(FillTest, BitsDoNotDependOnThreadsOrCuts) {
  expect_same_for_any_threads([&] {
    const Tensor x = zeros(DType::f32, {300, 700}), cut = zeros(DType::f32, {300, 700});
    fill_normal(*stream, {.x = x, .seed = 9});
    for (const auto& [begin, end] : {std::pair{0, 101}, std::pair{101, 300}}) {
      fill_normal(*stream, {.x = cut.slice_rows(begin, end), .seed = 9, .elements = {.first = begin * 700}});
    }
    EXPECT_TRUE(same_bytes(cut, x));
    return std::vector<Tensor>{x};
  });
}

// A slice of columns gets the same bits as these columns in the whole matrix.
TEST_F(FillTest, ColumnsAreThoseOfTheWhole) {
  const Tensor whole = zeros(DType::f32, {30, 70}), columns = zeros(DType::f32, {30, 21});
  fill_normal(*stream, {.x = whole, .seed = 9});
  const Tensor flat = columns.reshape({30 * 21});
  for (const auto& [begin, end] : {std::pair{0, 50}, std::pair{50, 630}}) {
    const GlobalElements elements{.first = begin / 21 * 70 + 14 + begin % 21, .run = 21, .stride = 70, .skip = begin % 21};
    fill_normal(*stream, {.x = flat.slice_rows(begin, end), .seed = 9, .elements = elements});
  }
  EXPECT_TRUE(same_bytes(columns, copy(whole.slice_cols(14, 35))));
}

TEST_F(FillTest, RefusesGaps) {
  const Tensor x = zeros(DType::f32, {4, 8});
  expect_refusal([&] { fill_normal(*stream, {.x = x.slice_cols(0, 4)}); }, "must be contiguous");
  expect_refusal([&] { fill_normal(*stream, {.x = x, .elements = {.first = -1}}); }, "index -1");
}

TEST_F(FillTest, ZeroesTensorsOfAListAndNothingElse) {
  std::vector<Tensor> all, parts;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const std::int64_t count : {1, 0, 32768, 40000}) {
      all.push_back(filled(dtype, {count + 2}, [](std::int64_t) { return 1.0; }));
      parts.push_back(all.back().slice_rows(1, count + 1));
    }
  }
  zero(*stream, {.x = {*device, parts}});
  for (const Tensor& x : all) {
    std::vector<double> expected(static_cast<std::size_t>(x.elements()), 0.0);
    expected.front() = expected.back() = 1.0;
    EXPECT_EQ(testing::values_of(x), expected);
  }
}

}  // namespace
}  // namespace octet::kernels
