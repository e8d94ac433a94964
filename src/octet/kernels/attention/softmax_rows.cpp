#include "octet/kernels/attention/softmax_rows.h"

#include <hwy/highway.h>

#include <limits>

#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kSumLanes>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
constexpr std::int64_t kLanes = hn::MaxLanes(DF()), kVectors = kSumLanes / kLanes;  // static targets have vectors of fixed size
static_assert(kSumLanes % kLanes == 0);

constexpr DF df;
constexpr DU du;

// Cephes' expf as in vector_math.h, with FMA, and with a single factor 2^n: n is in [-127, 128], where the bits of 2^-127 and
// 2^128 become those of 0 and of infinity.
VF exponential(VF x) {
  using C = octet::kernels::detail::ExpConstants<float>;
  const VF rounder = hn::Set(df, C::rounder);
  const VF clamped = hn::Min(hn::Set(df, C::highest), hn::Max(hn::Set(df, -88.0f), x));
  const VF shifted = hn::MulAdd(clamped, hn::Set(df, 1.44269504088896340736f), rounder);
  const VF n = hn::Sub(shifted, rounder);
  const VF r = hn::NegMulAdd(n, hn::Set(df, C::ln2_low), hn::NegMulAdd(n, hn::Set(df, C::ln2_high), clamped));
  VF p = hn::Set(df, C::p[0]);
  for (const float coefficient : {C::p[1], C::p[2], C::p[3], C::p[4], C::p[5]}) p = hn::MulAdd(p, r, hn::Set(df, coefficient));
  const VF mantissa = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(df, 1.0f));
  const auto exponent = hn::Add(hn::Sub(hn::BitCast(du, shifted), hn::BitCast(du, rounder)), hn::Set(du, std::uint32_t{C::bias}));
  const VF result = hn::Mul(mantissa, hn::BitCast(df, hn::ShiftLeft<C::mantissa_bits>(exponent)));
  return hn::IfThenElse(hn::IsNaN(x), x, result);  // Min and Max lose NaN on some targets
}

// Rounds to nearest even. Keeps NaN.
void store_rounded(VF x, BFloat16* out) {
  const auto bits = hn::BitCast(du, x), high = hn::ShiftRight<16>(bits);
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), hn::And(high, hn::Set(du, 1u))));
  const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
  const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  const hn::Rebind<std::uint16_t, DU> halves;
  hn::StoreU(hn::TruncateTo(halves, result), halves, reinterpret_cast<std::uint16_t*>(out));
}

}  // namespace

float largest_score(const float* scores, std::int64_t n) {
  VF largest[kVectors];
  for (VF& part : largest) part = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < n; i += kSumLanes) {
    for (std::int64_t part = 0; part < kVectors; ++part)
      largest[part] = hn::Max(hn::LoadU(df, scores + i + part * kLanes), largest[part]);
  }
  float lanes[kSumLanes];
  for (std::int64_t part = 0; part < kVectors; ++part) hn::StoreU(largest[part], df, lanes + part * kLanes);
  return max_row(lanes, kSumLanes);
}

float exponentials(const float* scores, std::int64_t n, float scale, float shift, BFloat16* p) {
  const VF factor = hn::Set(df, scale), addend = hn::Set(df, -shift);
  VF sums[kVectors];
  for (VF& sum : sums) sum = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += kSumLanes) {
    for (std::int64_t part = 0; part < kVectors; ++part) {
      const std::int64_t at = i + part * kLanes;
      const VF value = exponential(hn::MulAdd(factor, hn::LoadU(df, scores + at), addend));
      sums[part] = hn::Add(sums[part], value);
      store_rounded(value, p + at);
    }
  }
  float lanes[kSumLanes];
  for (std::int64_t part = 0; part < kVectors; ++part) hn::StoreU(sums[part], df, lanes + part * kLanes);
  return sum_row(lanes, kSumLanes);
}

void score_gradients(const float* scores, const float* dp, std::int64_t n, float scale, float lse, float delta, BFloat16* p,
                     BFloat16* ds) {
  const VF factor = hn::Set(df, scale), addend = hn::Set(df, -lse), mean = hn::Set(df, delta);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const VF value = exponential(hn::MulAdd(factor, hn::LoadU(df, scores + i), addend));
    store_rounded(value, p + i);
    store_rounded(hn::Mul(value, hn::Sub(hn::LoadU(df, dp + i), mean)), ds + i);
  }
}

}  // namespace octet::kernels::cpu
