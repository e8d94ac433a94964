#include "octet/kernels/tiles/tile_kernel.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "octet/base/require.h"

namespace octet::kernels::cpu {
namespace {

const TileKernel* choose() {
  const char* const variable = std::getenv("OCTET_TILES");
  const std::string_view wish = variable ? variable : "on";
  demand(wish == "on" || wish == "off", ExitCode::config, "OCTET_TILES=", wish, ": must be on or off");
  return wish == "off" ? nullptr : find_tile_kernel();
}

std::atomic<const TileKernel*>& current() {
  static std::atomic<const TileKernel*> kernel = choose();
  return kernel;
}

}  // namespace

const TileKernel* tile_kernel() { return current().load(std::memory_order_relaxed); }
void use_tile_kernel(const TileKernel* kernel) { current().store(kernel, std::memory_order_relaxed); }

}  // namespace octet::kernels::cpu
