// Whether this processor has AMX, and the system lets this process use it.
#include <sys/syscall.h>
#include <unistd.h>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {
namespace {

bool processor_has_tiles() {
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// Linux gives a process the registers of AMX, 8 KiB for each thread, only if it asks for them.
bool system_allows_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, and the number of the state in XCR0
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

extern const TileKernel kAmxKernel;  // amx.cpp

const TileKernel* find_tile_kernel() { return processor_has_tiles() && system_allows_tiles() ? &kAmxKernel : nullptr; }

}  // namespace octet::kernels::cpu
