// Finds the kernels that this processor and its system allow.
#include <sys/syscall.h>
#include <unistd.h>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {
namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

// Linux gives a process the registers of AMX, 8 KiB for each thread, only if it asks for them.
bool system_allows_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, and the number of the state in XCR0
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

extern const TileKernel kAmxKernel;         // amx.cpp
extern const TileKernel kAvx512Bf16Kernel;  // avx512_bf16.cpp

const TileKernel* find_amx() {
  const bool has_amx = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && has_avx512();
  return has_amx && system_allows_amx() ? &kAmxKernel : nullptr;
}

const TileKernel* find_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") ? &kAvx512Bf16Kernel : nullptr;
}

const TileKernel* find_tile_kernel() {
  if (const TileKernel* const amx = find_amx()) return amx;
  // VDPBF16PS multiplies twice as much as an FMA of FP32 in the same time on AMD's processors, but only as much on Intel's.
  return __builtin_cpu_is("amd") ? find_avx512_bf16() : nullptr;
}

}  // namespace octet::kernels::cpu
