#include "support/near.h"

namespace octet::testing {

namespace {

// Appends `number` of each of the `count` elements of type T in a row.
template <class T, class Number>
void append(std::vector<double>& to, const std::uint8_t* row, std::int64_t count, const Number& number) {
  for (std::int64_t c = 0; c < count; ++c) {
    T value;
    std::memcpy(&value, row + static_cast<std::size_t>(c) * sizeof(T), sizeof(T));
    to.push_back(static_cast<double>(number(value)));
  }
}

void append_row(std::vector<double>& to, DType dtype, const std::uint8_t* row, std::int64_t count) {
  const auto itself = [](auto value) { return value; };
  const auto as_float = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case DType::f64:
      return append<double>(to, row, count, itself);
    case DType::f32:
      return append<float>(to, row, count, itself);
    case DType::bf16:
      return append<BFloat16>(to, row, count, as_float);
    case DType::f16:
      return append<Float16>(to, row, count, as_float);
    case DType::f8_e4m3:
      return append<std::uint8_t>(to, row, count, [](std::uint8_t code) { return decode_fp8(Fp8Format::e4m3, code); });
    case DType::f8_e5m2:
      return append<std::uint8_t>(to, row, count, [](std::uint8_t code) { return decode_fp8(Fp8Format::e5m2, code); });
    case DType::i64:
      return append<std::int64_t>(to, row, count, itself);
    case DType::i32:
      return append<std::int32_t>(to, row, count, itself);
    case DType::e8m0:
    case DType::u8:
      return append<std::uint8_t>(to, row, count, itself);
  }
}

}  // namespace

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(tensor.elements()));
  const std::int64_t rows = tensor.shape.rank() > 0 ? tensor.rows() : 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    append_row(result, tensor.dtype, tensor.as_bytes() + static_cast<std::size_t>(r * tensor.row_stride) * size_of(tensor.dtype),
               tensor.cols());
  }
  return result;
}

std::string element_name(std::size_t i, std::int64_t cols) {
  if (cols <= 0) return concat("[", i, "]");
  const auto width = static_cast<std::size_t>(cols);
  return concat("[", i / width, ", ", i % width, "]");
}

::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                const std::function<double(std::size_t)>& allowed, std::int64_t cols) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  }
  std::size_t failures = 0, worst = 0;
  double worst_excess = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double difference = std::abs(a - e);
    const double limit = allowed(i);
    if (std::isfinite(difference) && difference <= limit) continue;
    ++failures;
    const double excess = std::isfinite(difference) && limit > 0 ? difference / limit : HUGE_VAL;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (failures == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << failures << " of " << actual.size() << " elements differ; worst "
                                       << element_name(worst, cols) << ": " << actual[worst] << ", expected " << expected[worst]
                                       << ", difference " << std::abs(actual[worst] - expected[worst]) << ", allowed "
                                       << allowed(worst);
}

::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                Tolerance tolerance, std::int64_t cols) {
  return near(
      actual, expected, [&](std::size_t i) { return tolerance.absolute + tolerance.relative * std::abs(expected[i]); }, cols);
}

::testing::AssertionResult near(const Tensor& actual, const std::vector<double>& expected, Tolerance tolerance) {
  return near(values_of(actual), expected, tolerance, actual.cols());
}

::testing::AssertionResult near(const Tensor& actual, const Tensor& expected, Tolerance tolerance) {
  if (!(actual.shape == expected.shape)) {
    return ::testing::AssertionFailure() << "shape " << actual.shape.text() << ", expected " << expected.shape.text();
  }
  return near(actual, values_of(expected), tolerance);
}

double relative_frobenius(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return HUGE_VAL;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

::testing::AssertionResult near_norm(const std::vector<double>& actual, const std::vector<double>& expected,
                                     double limit) {
  const double distance = relative_frobenius(actual, expected);
  if (distance <= limit) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative Frobenius distance " << distance << ", allowed " << limit;
}

::testing::AssertionResult same_bytes(const Tensor& actual, const Tensor& expected) {
  if (!(actual.shape == expected.shape) || actual.dtype != expected.dtype) {
    return ::testing::AssertionFailure() << name_of(actual.dtype) << " " << actual.shape.text() << ", expected "
                                         << name_of(expected.dtype) << " " << expected.shape.text();
  }
  const std::size_t size = size_of(actual.dtype);
  const auto cols = static_cast<std::size_t>(actual.cols());
  for (std::int64_t r = 0; r < (actual.shape.rank() > 0 ? actual.rows() : 0); ++r) {
    const std::uint8_t* a = actual.as_bytes() + static_cast<std::size_t>(r * actual.row_stride) * size;
    const std::uint8_t* e = expected.as_bytes() + static_cast<std::size_t>(r * expected.row_stride) * size;
    if (std::memcmp(a, e, cols * size) == 0) continue;
    for (std::size_t c = 0; c < cols; ++c) {
      if (std::memcmp(a + c * size, e + c * size, size) == 0) continue;
      const std::size_t i = static_cast<std::size_t>(r) * cols + c;
      return ::testing::AssertionFailure() << "bytes differ first at " << element_name(i, actual.cols()) << ": "
                                           << values_of(actual)[i] << ", expected " << values_of(expected)[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octet::testing
