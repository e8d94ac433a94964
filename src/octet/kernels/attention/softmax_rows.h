// The inner loops of attention by tiles: rows of scores to rows of P and dS, in BF16. Sums use 16 fixed lanes (vector_math.h), so
// that results do not depend on the width of the processor's vectors. Lengths are multiples of 16.
#pragma once

#include <cstdint>

#include "octet/numerics/bfloat16.h"

namespace octet::kernels::cpu {

// The largest score, or -inf. A NaN may be ignored.
float largest_score(const float* scores, std::int64_t n);

// p[i] = e^(scale * scores[i] - shift), rounded. Returns the sum before rounding. Exponentials err by at most 2 ulp, but are 0
// below 2^-126 and infinite from 2^127.5 on.
float exponentials(const float* scores, std::int64_t n, float scale, float shift, BFloat16* p);

// p[i] = e^(scale * scores[i] - lse) and ds[i] = p[i] (dp[i] - delta), each rounded once.
void score_gradients(const float* scores, const float* dp, std::int64_t n, float scale, float lse, float delta, BFloat16* p,
                     BFloat16* ds);

}  // namespace octet::kernels::cpu
