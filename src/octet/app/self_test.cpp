#include "octet/app/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "octet/base/require.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/numerics/bfloat16.h"
#include "octet/numerics/float8.h"

namespace octet::app {
namespace {

constexpr int kCodes = 256;
constexpr int kBf16Values = 65536;

// Value of a code from the formats' definition, in FP64.
double reference_value(Fp8Format format, int code) {
  const int bits = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  const int exponent = (code & 0x7F) >> bits, mantissa = code & ((1 << bits) - 1);
  const double sign = code & 0x80 ? -1.0 : 1.0;
  if (format == Fp8Format::e4m3 && (code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  if (format == Fp8Format::e5m2 && exponent == 31) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias - bits)
                       : sign * std::ldexp((1 << bits) + mantissa, exponent - bias - bits);
}

// The nearest finite code by search; of two equally near the even one; beyond the largest the largest.
int reference_code(Fp8Format format, double value) {
  if (std::isnan(value)) return 0x7F;
  const int largest = format == Fp8Format::e4m3 ? 0x7E : 0x7B;
  const double magnitude = std::abs(value);
  int low = 0, high = largest;  // codes of one sign ascend with their values
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (reference_value(format, middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - reference_value(format, low), above = reference_value(format, high) - magnitude;
  const int code = below < above || (below == above && low % 2 == 0) ? low : high;
  return code | (std::signbit(value) ? 0x80 : 0);
}

float bf16_value(int bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Runs the whole table of BF16 values through the kernel at scale 1.
std::vector<std::uint8_t> cast_by_kernel(Fp8Format format, DeviceKind kind) {
  const auto device = make_device(kind);
  const auto stream = device->make_stream();
  Arena arena(*device, MemoryCategory::workspace, std::size_t{4} << 20);
  const Shape shape = {kBf16Values / 256, 256};
  const Tensor x = allocate(arena, DType::bf16, shape);
  std::vector<std::uint16_t> bits(kBf16Values);
  for (int i = 0; i < kBf16Values; ++i) bits[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
  stream->copy_to_device(x.data, bits.data(), x.bytes());
  const Tensor scale = allocate(arena, DType::f32, {1}), scale_inv = allocate(arena, DType::f32, {1});
  const float one = 1.0f;
  stream->copy_to_device(scale.data, &one, sizeof one);
  const Quantized out{.format = format,
                      .tile = ScaleTile::tensor,
                      .rowwise = allocate(arena, dtype_of(format), shape),
                      .rowwise_scale_inv = scale_inv,
                      .columnwise = {},
                      .columnwise_scale_inv = {}};
  kernels::quantize(*stream, arena,
                    {.x = x,
                     .spec = {.format = format, .tile = ScaleTile::tensor, .source = ScaleSource::history},
                     .out = out,
                     .scale = scale.as<float>()});
  std::vector<std::uint8_t> codes(kBf16Values);
  stream->copy_to_host(codes.data(), out.rowwise.data, codes.size());
  stream->synchronize();
  return codes;
}

void check_format(Fp8Format format, DeviceKind device, SelfTest& test) {
  const char* name = format == Fp8Format::e4m3 ? "E4M3" : "E5M2";
  for (int code = 0; code < kCodes; ++code, ++test.checks) {
    const double expected = reference_value(format, code), got = decode_fp8(format, static_cast<std::uint8_t>(code));
    if (!same(expected, got)) {
      test.failure = concat(name, " code ", code, " decodes to ", got, ", but is ", expected);
      return;
    }
  }
  const std::vector<std::uint8_t> vectorised = cast_by_kernel(format, device);
  for (int i = 0; i < kBf16Values; ++i, test.checks += 2) {
    const float value = bf16_value(i);
    const int expected = reference_code(format, value);
    const int scalar = encode_fp8(format, value), kernel = vectorised[static_cast<std::size_t>(i)];
    if (scalar != expected || kernel != expected) {
      test.failure = concat(name, " of ", value, " (BF16 bits ", i, "): code ", scalar, " alone and ", kernel,
                            " by the kernel, but ", expected, " is nearest");
      return;
    }
  }
}

}  // namespace

SelfTest fp8_self_test(DeviceKind device) {
  SelfTest test;
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    check_format(format, device, test);
    if (!test.failure.empty()) return test;
  }
  for (int code = 0; code < kCodes; ++code, ++test.checks) {
    const double expected = code == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
    if (const double got = decode_e8m0(static_cast<std::uint8_t>(code)); !same(expected, got)) {
      test.failure = concat("E8M0 code ", code, " decodes to ", got, ", but is ", expected);
      return test;
    }
  }
  volatile float smallest = std::numeric_limits<float>::min();
  ++test.checks;
  if (smallest * 0.5f == 0.0f) test.failure = "subnormal FP32 numbers are flushed to zero on this thread";
  return test;
}

}  // namespace octet::app
