# Whether the compiler and its assembler can build the products of BF16 for x86 (kernels/tiles/x86). They run only where the processor has
# the instructions.
include(CheckCXXSourceCompiles)
set(OCTET_AVX512_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
list(JOIN OCTET_AVX512_FLAGS " " CMAKE_REQUIRED_FLAGS)
check_cxx_source_compiles("
#include <immintrin.h>
__attribute__((target(\"avx512bf16\"))) __m512 add(__m512 c, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(c, a, b); }
int main() {
  asm volatile(\"tdpbf16ps %tmm2, %tmm1, %tmm0\");
  return __builtin_cpu_supports(\"amx-bf16\") && __builtin_cpu_supports(\"amx-tile\") && __builtin_cpu_supports(\"avx512bf16\");
}" OCTET_HAS_TILES)
unset(CMAKE_REQUIRED_FLAGS)
