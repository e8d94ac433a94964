#pragma once

#include "octet/comm/group.h"

namespace octet::comm {

// y [n] = reduction over r of the n elements from r * n of `parts`, r = 0 first; BF16 in FP32, rounded once. y is not in `parts`.
void reduce_parts(const Tensor& parts, int count, const Tensor& y, Reduction reduction);

}  // namespace octet::comm
