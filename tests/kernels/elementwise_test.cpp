#include "octet/kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace octet::kernels {
namespace {

class CastTest : public ::testing::Test {
 protected:
  CastTest() : device_(make_device(DeviceKind::cpu)), stream_(device_->make_stream()) {}

  template <class To, class From>
  std::vector<To> cast_all(std::vector<From> from) {
    std::vector<To> to(from.size());
    const auto n = static_cast<std::int64_t>(from.size());
    cast(*stream_, {.x = Tensor(from.data(), kDTypeOf<From>, {1, n}), .y = Tensor(to.data(), kDTypeOf<To>, {1, n})});
    return to;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 0x7FFFu, 0x8000u, 0x8001u}) values.push_back(std::bit_cast<float>((high << 16) | low));
  }
  return values;
}

template <class T>
void expect_same(T a, T b, float from) {
  ASSERT_EQ(std::memcmp(&a, &b, sizeof(T)), 0) << from;
}

TEST_F(CastTest, RoundsF32AsTheTypesDo) {
  const std::vector<float> values = interesting_floats();
  const auto bf16 = cast_all<BFloat16>(values);
  const auto f16 = cast_all<Float16>(values);
  const auto f64 = cast_all<double>(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    expect_same(bf16[i], BFloat16(values[i]), values[i]);
    expect_same(f16[i], Float16(values[i]), values[i]);
    if (!std::isnan(values[i])) {
      ASSERT_EQ(f64[i], static_cast<double>(values[i]));
    }
  }
}

TEST_F(CastTest, WidensEvery16BitValueExactly) {
  std::vector<BFloat16> bf16(65536);
  std::vector<Float16> f16(65536);
  for (std::size_t i = 0; i < 65536; ++i) bf16[i].bits = f16[i].bits = static_cast<std::uint16_t>(i);
  const auto from_bf16 = cast_all<float>(bf16), from_f16 = cast_all<float>(f16);
  for (std::size_t i = 0; i < 65536; ++i) {
    expect_same(from_bf16[i], static_cast<float>(bf16[i]), static_cast<float>(i));
    expect_same(from_f16[i], static_cast<float>(f16[i]), static_cast<float>(i));
  }
}

// The FP64 values lie just beside the middle of two BF16 or FP16 values. Rounding to FP32 first would move them to the middle.
TEST_F(CastTest, RoundsF64Once) {
  for (const double sign : {1.0, -1.0}) {
    for (const double beside : {-0x1p-50, 0.0, 0x1p-50}) {
      const double bf16_middle = 1.0 + 0x1p-8, f16_middle = 1.0 + 0x1p-11;  // between an even code and an odd one
      EXPECT_EQ(cast_all<BFloat16>(std::vector<double>{sign * (bf16_middle + beside)})[0],
                BFloat16(static_cast<float>(sign * (beside > 0 ? 1.0 + 0x1p-7 : 1.0))));
      EXPECT_EQ(cast_all<Float16>(std::vector<double>{sign * (f16_middle + beside)})[0],
                Float16(static_cast<float>(sign * (beside > 0 ? 1.0 + 0x1p-10 : 1.0))));
      const double odd_middle = 1.0 + 3 * 0x1p-8;  // between an odd code and an even one
      EXPECT_EQ(cast_all<BFloat16>(std::vector<double>{sign * (odd_middle + beside)})[0],
                BFloat16(static_cast<float>(sign * (beside < 0 ? 1.0 + 0x1p-7 : 1.0 + 0x1p-6))));
    }
  }
  const auto extremes =
      cast_all<BFloat16>(std::vector<double>{1e300, -1e300, 1e-300, -1e-300, HUGE_VAL, std::nan(""), 0x1.FEFp127});
  EXPECT_EQ(extremes[0].bits, 0x7F80);
  EXPECT_EQ(extremes[1].bits, 0xFF80);
  EXPECT_EQ(extremes[2].bits, 0x0000);
  EXPECT_EQ(extremes[3].bits, 0x8000);
  EXPECT_EQ(extremes[4].bits, 0x7F80);
  EXPECT_TRUE(std::isnan(static_cast<float>(extremes[5])));
  EXPECT_EQ(extremes[6].bits, 0x7F7F);
}

TEST_F(CastTest, TakesStridedRowsAndLeavesGapsAlone) {
  std::vector<float> x = {1, 2, 99, 3, 4, 99, 5, 6, 99};
  std::vector<BFloat16> y(12, BFloat16(-7.0f));
  cast(*stream_,
       {.x = Tensor(x.data(), DType::f32, {3, 3}).slice_cols(0, 2), .y = Tensor(y.data(), DType::bf16, {3, 4}).slice_cols(1, 3)});
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(static_cast<float>(y[4 * r]), -7.0f);
    EXPECT_EQ(static_cast<float>(y[4 * r + 1]), x[3 * r]);
    EXPECT_EQ(static_cast<float>(y[4 * r + 2]), x[3 * r + 1]);
    EXPECT_EQ(static_cast<float>(y[4 * r + 3]), -7.0f);
  }
}

TEST_F(CastTest, RefusesOtherTypesAndShapes) {
  std::vector<float> x(6);
  const Tensor a(x.data(), DType::f32, {2, 3}), b(x.data(), DType::i32, {2, 3}), c(x.data(), DType::f32, {3, 2});
  EXPECT_THROW(cast(*stream_, {.x = a, .y = b}), Error);
  EXPECT_THROW(cast(*stream_, {.x = a, .y = c}), Error);
}

// Rounds a normal number to the nearest multiple of the unit of its last bit, ties to even, by the definition.
double rounded(double value, int bits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int unit = std::ilogb(value) - bits + 1;
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

template <class T>
constexpr int kBits = std::is_same_v<T, BFloat16> ? 8
                      : std::is_same_v<T, float>  ? 24
                                                  : 53;

class AddTest : public CastTest {
 protected:
  template <class To, class From>
  void expect_sums(const std::vector<double>& olds, const std::vector<double>& added) {
    std::vector<To> y;
    std::vector<From> x;
    for (const double a : olds) {
      for (const double b : added) {
        y.push_back(static_cast<To>(static_cast<Real<To>>(a)));
        x.push_back(static_cast<From>(static_cast<Real<From>>(b)));
      }
    }
    const std::vector<To> before = y;
    const auto n = static_cast<std::int64_t>(y.size());
    add(*stream_, {.x = Tensor(x.data(), kDTypeOf<From>, {n}), .y = Tensor(y.data(), kDTypeOf<To>, {n})});
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto a = static_cast<double>(static_cast<Real<To>>(before[i])),
                 b = static_cast<double>(static_cast<Real<From>>(x[i]));
      // Rounding the FP64 sum of two FP32 numbers to FP32 gives the correctly rounded sum.
      const bool wide = std::is_same_v<To, double> || std::is_same_v<From, double>;
      const double expected = rounded(wide ? a + b : rounded(a + b, 24), kBits<To>);
      ASSERT_EQ(static_cast<double>(static_cast<Real<To>>(y[i])), expected) << a << " + " << b << " to " << name_of(kDTypeOf<To>);
    }
  }
};

TEST_F(AddTest, RoundsTheSumOnceForEveryPairOfTypes) {
  std::vector<double> olds = {0, 1, -1, 1 + 0x1p-7, 1 + 0x1p-23, -1 - 0x1p-7, 3, 1e20, -1e-20};
  std::vector<double> added = {0, 1, -1, 1e-3, 1e30, -1e10};
  // Ties of BF16, FP32 and FP64, and values beside them.
  for (const int bits : {8, 24, 53}) {
    for (const double factor : {0.5, 1.0, 1.5, 3.0}) {
      for (const double beside : {0.0, 0x1p-7, -0x1p-7}) {
        added.push_back(std::ldexp(factor, -bits) * (1 + beside));
        added.push_back(-added.back());
      }
    }
  }
  for (int i = 1; i < 200; ++i) olds.push_back(std::ldexp(std::sin(i), i % 40 - 20));
  for (int i = 1; i < 200; ++i) added.push_back(std::ldexp(std::cos(i), i % 30 - 20));
  const auto of_types = [&]<class To>() {
    expect_sums<To, double>(olds, added);
    expect_sums<To, float>(olds, added);
    expect_sums<To, BFloat16>(olds, added);
  };
  of_types.operator()<double>();
  of_types.operator()<float>();
  of_types.operator()<BFloat16>();
}

TEST_F(AddTest, KeepsInfinityAndNan) {
  std::vector<float> x = {HUGE_VALF, -HUGE_VALF, std::nanf(""), 0x1.FEp127f};
  std::vector<BFloat16> y = {BFloat16(1.0f), BFloat16(HUGE_VALF), BFloat16(1.0f), BFloat16(0x1.FEp127f)};
  add(*stream_, {.x = Tensor(x.data(), DType::f32, {4}), .y = Tensor(y.data(), DType::bf16, {4})});
  EXPECT_EQ(static_cast<float>(y[0]), HUGE_VALF);
  EXPECT_TRUE(std::isnan(static_cast<float>(y[1])));
  EXPECT_TRUE(std::isnan(static_cast<float>(y[2])));
  EXPECT_EQ(static_cast<float>(y[3]), HUGE_VALF);
}

TEST_F(AddTest, TakesStridedRowsAndLeavesGapsAlone) {
  std::vector<float> x = {1, 2, 99, 3, 4, 99};
  std::vector<float> y(8, -7.0f);
  add(*stream_,
      {.x = Tensor(x.data(), DType::f32, {2, 3}).slice_cols(0, 2), .y = Tensor(y.data(), DType::f32, {2, 4}).slice_cols(1, 3)});
  EXPECT_EQ(y, (std::vector<float>{-7, -6, -5, -7, -7, -4, -3, -7}));
}

TEST_F(AddTest, AddsOneRowToEveryRow) {
  std::vector<float> x = {1, 2, 3}, y(8, -7.0f);
  Tensor row(x.data(), DType::f32, {1, 3});
  row.shape[0] = 2;
  row.row_stride = 0;
  add(*stream_, {.x = row, .y = Tensor(y.data(), DType::f32, {2, 4}).slice_cols(1, 4)});
  EXPECT_EQ(y, (std::vector<float>{-7, -6, -5, -4, -7, -6, -5, -4}));
}

TEST_F(AddTest, RefusesOtherTypesAndShapes) {
  std::vector<float> x(6);
  const Tensor a(x.data(), DType::f32, {2, 3}), b(x.data(), DType::f16, {2, 3}), c(x.data(), DType::f32, {3, 2});
  EXPECT_THROW(add(*stream_, {.x = a, .y = b}), Error);
  EXPECT_THROW(add(*stream_, {.x = a, .y = c}), Error);
}

// Each expected value differs from that of another order of the sum, or of another place of the rounding.
TEST_F(AddTest, SumsPartsInTheirOrderAndRoundsTwice) {
  const auto sum_of = [&]<class T>(std::vector<T> parts, std::optional<T> residual) {
    T y(-7.0f);
    SumParts op{.parts = {}, .residual = {}, .y = Tensor(&y, kDTypeOf<T>, {1})};
    for (T& part : parts) op.parts.emplace_back(&part, kDTypeOf<T>, Shape{1});
    if (residual) op.residual = Tensor(&*residual, kDTypeOf<T>, {1});
    sum_parts(*stream_, op);
    return static_cast<double>(static_cast<Real<T>>(y));
  };
  const auto bf16 = [](float x) { return BFloat16(x); };
  EXPECT_EQ(sum_of(std::vector{1.0f, 0x1p-24f, 0x1p-24f}, std::optional<float>{}), 1.0);
  EXPECT_EQ(sum_of(std::vector{0x1p-24f, 0x1p-24f, 1.0f}, std::optional<float>{}), 1.0 + 0x1p-23);
  EXPECT_EQ(sum_of(std::vector{bf16(1.0f), bf16(0x1p-8f), bf16(0x1p-8f)}, std::optional<BFloat16>{}), 1.0 + 0x1p-7);
  EXPECT_EQ(sum_of(std::vector{bf16(1.0f), bf16(0x1p-9f)}, std::optional(bf16(0x1.8p-9f))), 1.0);
  EXPECT_EQ(sum_of(std::vector{1.0, 0x1p-50}, std::optional(0x1p-51)), 1.0 + 0x1.8p-50);
}

TEST_F(AddTest, SumsPartsOfAnyLengthInPlace) {
  constexpr std::int64_t kCount = 100001;
  std::vector<float> a(kCount), b(kCount), residual(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<std::size_t>(i);
    a[at] = static_cast<float>(i);
    b[at] = static_cast<float>(2 * i);
    residual[at] = static_cast<float>(-i);
  }
  const auto tensor = [](std::vector<float>& x) { return Tensor(x.data(), DType::f32, {kCount}); };
  sum_parts(*stream_, {.parts = {tensor(a), tensor(b)}, .residual = tensor(residual), .y = tensor(b)});
  for (std::int64_t i = 0; i < kCount; ++i) ASSERT_EQ(b[static_cast<std::size_t>(i)], static_cast<float>(2 * i));
  EXPECT_THROW(sum_parts(*stream_, {.parts = {}, .residual = {}, .y = tensor(b)}), Error);
  EXPECT_THROW(sum_parts(*stream_, {.parts = std::vector(kMostParts + 1, tensor(a)), .residual = {}, .y = tensor(b)}), Error);
  EXPECT_THROW(sum_parts(*stream_, {.parts = {tensor(a).slice_rows(0, 5)}, .residual = {}, .y = tensor(b)}), Error);
}

}  // namespace
}  // namespace octet::kernels
