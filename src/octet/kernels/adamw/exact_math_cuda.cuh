// AdamW's square root, quotients and stochastic rounding in few instructions and without branches.
//
// Claim: if update_fast() of adamw_cuda.cu returns true, the weight and the moments have the bits that update() computes with
// __fsqrt_rn, __fdiv_rn and BFloat16::stochastic. Proof:
//
// 1. Scales. A product with a power of 2 is exact and changes no rounding, as long as nothing overflows or becomes subnormal. The
//    root is therefore computed of v 2^80, and the step is computed times 2^48. This keeps every intermediate result and every
//    remainder normal, apart from the cases below. The last FMA of update_fast() takes 2^48 away again: its product is exact, so
//    it rounds once, like the addition of update(). The compiler must not form other FMAs (-fmad=false).
// 2. Root. exact_root() has the instructions of __fsqrt_rn for arguments that need no special case: an estimate, and a correction
//    by the exact remainder.
//    - v > 0 is at least 2^-149, so v 2^80 is at least 2^-69. Adding 2^-126 is less than half a unit in its last place.
//    - v = 0 becomes 2^-126. After the scale and the correction are taken away, its root is at most 2^-87. This is less than half
//      a unit in the last place of epsilon, which is at least 2^-60, so the sum is epsilon, as with a root of 0.
//    - v < 0, NaN, and v >= 2^48, for which v 2^80 overflows, give NaN.
// 3. Quotient by the bias correction, which all elements share: y = 1 / b, correctly rounded, q = a y, and fma(fma(-q, b, a), y, q).
//    q can be 1.5 units in the last place from a / b, which is too far for Markstein's theorem. But the last FMA is then less than
//    3 x 2^-24 units from a / b before it rounds, so it rounds like a / b unless a / b lies that near to a midpoint of two floats.
//    tests/kernels/exact_quotient_slow_test.cpp enumerates all such quotients of 24-bit significands: each is rounded correctly. The
//    correction is between 2^-16 and 1, so the remainder is normal.
// 4. Step. exact_quotient() has the instructions of __fdiv_rn for arguments that need no special case. Its divisor is between
//    2^-60 and 2^61.
//    - The remainder can only underflow if the dividend without its scale is below 2^-126, and the quotient only if the step is
//      below 2^-174. update() itself may round a dividend or a quotient below 2^-126 as subnormal. In each of these cases the step
//      is below 2^-66, and adding it to a weight whose result is at least 2^-40 has no effect, whatever its bits are.
//    - A step that overflows becomes NaN. Steps of 2^79 and more, at which only the last FMA overflows, are assumed not to occur.
// 5. Result. update_fast() returns false if the weight is NaN or below 2^-40. This covers every exception above. A moment that is
//    NaN makes the weight NaN, too.
// 6. Rounding of a number that is not NaN. stochastic_bits() adds the random 16 bits to the number's bits, as
//    BFloat16::stochastic does, and the caller drops the lower half. An infinity has a lower half of 0 and stays what it is.
#pragma once

#include <cstdint>

#include "octet/base/rng.h"

namespace octet::kernels::cuda {

constexpr float kRootScale = 0x1p40f, kStepScale = 0x1p48f;

__device__ inline float approximate_rsqrt(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float approximate_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The root of v, times kRootScale.
__device__ inline float exact_root(float v) {
  const float scaled = fmaf(v, kRootScale * kRootScale, 0x1p-126f);
  const float rsqrt = approximate_rsqrt(scaled);
  const float root = scaled * rsqrt;
  return fmaf(fmaf(-root, root, scaled), 0.5f * rsqrt, root);
}

// x / divisor. `reciprocal` is 1 / divisor, correctly rounded.
__device__ inline float exact_quotient(float x, float divisor, float reciprocal) {
  const float quotient = x * reciprocal;
  return fmaf(fmaf(-quotient, divisor, x), reciprocal, quotient);
}
__device__ inline float exact_quotient(float x, float divisor) {
  float reciprocal = approximate_reciprocal(divisor);
  reciprocal = fmaf(fmaf(-divisor, reciprocal, 1.0f), reciprocal, reciprocal);
  const float quotient = x * reciprocal;
  return fmaf(fmaf(-divisor, quotient, x), reciprocal, quotient);
}

// Returns bits whose upper half is BFloat16::stochastic(value, half `i` % 2 of word `i` / 2), for any value except NaN.
__device__ inline std::uint32_t stochastic_bits(float value, const Philox4& words, int i) {
  const std::uint32_t bits = __float_as_uint(value), word = words[i / 2];
  return i % 2 == 0 ? __dp2a_lo(word, 1u, bits) : bits + (word >> 16);
}

}  // namespace octet::kernels::cuda
