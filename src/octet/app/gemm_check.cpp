#include "octet/app/gemm_check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "octet/app/gpu_facts.h"
#include "octet/base/clock.h"
#include "octet/base/require.h"
#include "octet/device/arena.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/numerics/bfloat16.h"
#include "octet/numerics/float8.h"

namespace octet::app {
namespace {

// Hopper's tensor cores add FP8 products with 14 bits and other products with 24. So sums must stay below 2^13 and 2^23.
constexpr int kLargestFp8A = 4, kLargestFp8B = 2, kLargestBf16 = 31;
constexpr std::int64_t kMostTerms = 1024;
constexpr int kLeastRepeats = 2;

std::uint8_t fp8_of(std::int8_t value) { return encode_fp8(Fp8Format::e4m3, value); }
BFloat16 bf16_of(std::int8_t value) { return BFloat16(value); }

template <class Code>
Tensor upload(Stream& stream, Arena& memory, DType dtype, const Shape& shape, const std::vector<std::int8_t>& values,
              Code (*code)(std::int8_t)) {
  const Tensor tensor = allocate(memory, dtype, shape);
  std::vector<Code> codes(values.size());
  std::transform(values.begin(), values.end(), codes.begin(), code);
  stream.copy_to_device(tensor.data, codes.data(), tensor.bytes());
  stream.synchronize();
  return tensor;
}

// Returns the scratch that kernels::gemm needs for both precisions on a device of this kind.
std::size_t scratch_bytes(DeviceKind kind, const ProductShape& shape) {
  const auto device = make_meta_device(kind);
  const auto stream = device->make_stream();
  Arena memory(*device, MemoryCategory::workspace, 0), scratch(*device, MemoryCategory::workspace, 0);
  const Tensor sum = allocate(memory, DType::f32, {shape.m, shape.n});
  for (const DType dtype : {DType::f8_e4m3, DType::bf16}) {
    kernels::GemmOperand a{.values = allocate(memory, dtype, {shape.m, shape.k})};
    kernels::GemmOperand b{.values = allocate(memory, dtype, {shape.n, shape.k})};
    if (dtype == DType::f8_e4m3) a.scale_inv = b.scale_inv = allocate(memory, DType::f32, {1});
    kernels::gemm(*stream, scratch, {.a = a, .b = b, .d = sum});
  }
  return scratch.high_water();
}

// The factors of one precision, in memory of the device.
struct Factors {
  ExactProduct product;
  kernels::GemmOperand a, b;
};

Factors fp8_factors(Stream& stream, Arena& memory, const ProductShape& shape, std::uint64_t seed) {
  ExactProduct product(shape, kLargestFp8A, kLargestFp8B, seed);
  const float one = 1;
  const Tensor scale = allocate(memory, DType::f32, {1});
  stream.copy_to_device(scale.data, &one, sizeof one);
  const auto operand = [&](std::int64_t rows, const std::vector<std::int8_t>& values) {
    return kernels::GemmOperand{.values = upload(stream, memory, DType::f8_e4m3, {rows, shape.k}, values, fp8_of),
                                .scale_inv = scale};
  };
  const kernels::GemmOperand a = operand(shape.m, product.a()), b = operand(shape.n, product.b());
  return {.product = std::move(product), .a = a, .b = b};
}

Factors bf16_factors(Stream& stream, Arena& memory, const ProductShape& shape, std::uint64_t seed) {
  ExactProduct product(shape, kLargestBf16, kLargestBf16, seed);
  const kernels::GemmOperand a{.values = upload(stream, memory, DType::bf16, {shape.m, shape.k}, product.a(), bf16_of)};
  const kernels::GemmOperand b{.values = upload(stream, memory, DType::bf16, {shape.n, shape.k}, product.b(), bf16_of)};
  return {.product = std::move(product), .a = a, .b = b};
}

// Alternately adds and subtracts the product, so that the sum stays small and keeps the errors of all GEMMs. Their number is
// odd, so that the same mistake in all of them does not cancel out.
void multiply(Stream& stream, Arena& scratch, const Factors& factors, const Tensor& sum, std::int64_t gemms) {
  require(gemms % 2 == 1, "gemm check: ", gemms, " GEMMs");
  for (std::int64_t i = 0; i < gemms; ++i)
    kernels::gemm(stream, scratch,
                  {.a = factors.a, .b = factors.b, .c = i > 0 ? sum : Tensor(), .d = sum, .factor = i % 2 == 0 ? 1.0f : -1.0f});
}

void check_products(DeviceKind kind, int index, const GemmLoad& load, GemmCheck& result) {
  const ProductShape& shape = load.shape;
  require(shape.k <= kMostTerms, "gemm check: sums of ", shape.k, " terms");
  const auto device = make_device(kind, index);
  const auto stream = device->make_stream();
  const auto elements = static_cast<std::size_t>(shape.m * shape.n);
  const auto factor_elements = static_cast<std::size_t>((shape.m + shape.n) * shape.k);
  Arena memory(*device, MemoryCategory::workspace, elements * sizeof(float) + 3 * factor_elements + (std::size_t{1} << 20));
  Arena scratch(*device, MemoryCategory::workspace, scratch_bytes(kind, shape));
  const Tensor sum = allocate(memory, DType::f32, {shape.m, shape.n});
  std::random_device random;  // another run tests other bits
  struct Kind {
    const char* name;
    Factors factors;
    std::vector<double>* rates;
    std::int64_t gemms = 1;  // in a repeat
  };
  std::vector<Kind> kinds;
  if (kind != DeviceKind::cuda || cuda_properties(index).compute_capability >= kOldestWithFp8)
    kinds.push_back({.name = "FP8", .factors = fp8_factors(*stream, memory, shape, random()), .rates = &result.fp8_gflops});
  kinds.push_back({.name = "BF16", .factors = bf16_factors(*stream, memory, shape, random()), .rates = &result.bf16_gflops});
  const double flops = 2.0 * static_cast<double>(elements) * static_cast<double>(shape.k);
  std::vector<float> product(elements);
  const Clock::time_point begin = Clock::now();
  for (int repeat = 0; repeat < kLeastRepeats || seconds_since(begin) < load.seconds; ++repeat) {
    for (Kind& one : kinds) {
      const Clock::time_point start = Clock::now();
      multiply(*stream, scratch, one.factors, sum, one.gemms);
      stream->synchronize();
      const double each_s = seconds_since(start) / static_cast<double>(one.gemms);
      result.gemms += one.gemms;
      stream->copy_to_host(product.data(), sum.data, sum.bytes());
      stream->synchronize();
      const std::string wrong = one.factors.product.wrong_element(product);
      if (!wrong.empty()) {
        result.wrong = concat(one.name, " GEMM ", shape.m, " x ", shape.n, " x ", shape.k, ": ", wrong);
        return;
      }
      // The first repeat also loads the library and its kernels.
      if (repeat > 0) one.rates->push_back(flops / each_s * 1e-9);
      one.gemms = 1 + 2 * static_cast<std::int64_t>(std::min(load.repeat_s / each_s, 1e6) / 2);
    }
  }
}

}  // namespace

GemmCheck check_gemm(DeviceKind kind, int index, const GemmLoad& load) {
  GemmCheck result;
  try {
    check_products(kind, index, load, result);
  } catch (const std::exception& error) {
    result.wrong = error.what();
  }
  return result;
}

}  // namespace octet::app
