// The products of single groups, for backends that multiply one after another.
#pragma once

#include <cstdint>

#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::kernels {

// The product of a group's first `rows` rows. Scales of slices may be strided.
Gemm product_of(const GroupedGemmM& op, const GroupExtent& part, std::int64_t rows);
Gemm product_of(const GroupedGemmK& op, const GroupExtent& part, std::int64_t rows);

namespace cpu {
void grouped_gemm(const GroupedGemmM& op, std::int64_t lanes, void* memory);
void grouped_gemm(const GroupedGemmK& op, std::int64_t lanes, void* memory);
}  // namespace cpu

}  // namespace octet::kernels
