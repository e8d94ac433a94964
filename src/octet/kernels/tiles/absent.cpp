// Takes the place of x86/ on other processors, and with compilers that do not know AMX.
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

const TileKernel* find_amx() { return nullptr; }
const TileKernel* find_avx512_bf16() { return nullptr; }
const TileKernel* find_tile_kernel() { return nullptr; }

}  // namespace octet::kernels::cpu
