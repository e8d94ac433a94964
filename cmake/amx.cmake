# Whether the compiler and its assembler can build the kernels for Intel AMX. They run only where the processor has AMX.
include(CheckCXXSourceCompiles)
set(OCTET_AMX_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
list(JOIN OCTET_AMX_FLAGS " " CMAKE_REQUIRED_FLAGS)
check_cxx_source_compiles("
#include <immintrin.h>
int main() {
  asm volatile(\"tdpbf16ps %tmm2, %tmm1, %tmm0\");
  return __builtin_cpu_supports(\"amx-bf16\") && __builtin_cpu_supports(\"amx-tile\");
}" OCTET_HAS_AMX)
unset(CMAKE_REQUIRED_FLAGS)
