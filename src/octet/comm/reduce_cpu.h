#pragma once

#include "octet/comm/group.h"

namespace octet::comm {

// y [n] = reduction over r = 0, 1, ..., count - 1 of parts [count * n], shard r. BF16 is reduced in FP32 and rounded once. y
// must not overlap `parts`.
void reduce_parts(const Tensor& parts, int count, const Tensor& y, Reduction reduction);

}  // namespace octet::comm
