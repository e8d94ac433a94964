// For processors or compilers without AMX.
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

const TileKernel* find_tile_kernel() { return nullptr; }

}  // namespace octet::kernels::cpu
