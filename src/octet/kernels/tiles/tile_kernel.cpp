#include "octet/kernels/tiles/tile_kernel.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace octet::kernels::cpu {
namespace {

const TileKernel* choose() {
  const char* const wish = std::getenv("OCTET_TILES");
  return wish != nullptr && std::strcmp(wish, "off") == 0 ? nullptr : find_tile_kernel();
}

std::atomic<const TileKernel*>& current() {
  static std::atomic<const TileKernel*> kernel = choose();
  return kernel;
}

}  // namespace

const TileKernel* tile_kernel() { return current().load(std::memory_order_relaxed); }
void use_tile_kernel(const TileKernel* kernel) { current().store(kernel, std::memory_order_relaxed); }

}  // namespace octet::kernels::cpu
