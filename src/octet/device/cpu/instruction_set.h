#pragma once

namespace octet {

// The widest set of vector instructions that the compiler was allowed: "AVX-512 with BF16", "AVX-512", "AVX2", "SSE4.2", "SVE", "NEON", or
// "no vector instructions chosen".
const char* instruction_set_of_build();

}  // namespace octet
