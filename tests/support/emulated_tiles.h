// The kernels of kernels/tiles in plain C++, so that every machine can test what is built on them. A product has the bits of
// AMX's TDPBF16PS, or of AVX-512's VDPBF16PS (Intel, Architecture Instruction Set Extensions Programming Reference, and Software
// Developer's Manual): FMA with rounding to nearest even, in which subnormal operands and results count as 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::testing {

class EmulatedTiles {
 public:
  EmulatedTiles();  // Throws std::logic_error outside a TileSession.
  // A session of this thread. Throws std::logic_error if one exists already, or if there is none to end.
  static void begin();
  static void end();

  template <class Bytes>
  static void look_up(const Bytes& table, const Bytes& indices, Bytes& out) {
    for (int i = 0; i < 64; ++i) out[i] = table[i / 16 * 16 + indices[i] % 16];
  }

  template <int kTile>
  void zero() {
    std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
  }
  template <int kTile>
  void load(const void* from, std::int64_t bytes) {
    for (std::int64_t i = 0; i < 16; ++i) std::memcpy(tiles_[kTile][i], static_cast<const char*>(from) + i * bytes, 64);
  }
  template <int kTile>
  void load_once(const void* from, std::int64_t bytes) {
    load<kTile>(from, bytes);
  }
  template <int kTile>
  void store(void* to, std::int64_t bytes) {
    for (std::int64_t i = 0; i < 16; ++i) std::memcpy(static_cast<char*>(to) + i * bytes, tiles_[kTile][i], 64);
  }
  template <int kD, int kA, int kB>
  void multiply() {
    multiply(tiles_[kD], tiles_[kA], tiles_[kB]);
  }

 private:
  using Tile = std::uint8_t[16][64];
  static void multiply(Tile& d, const Tile& a, const Tile& b);

  alignas(64) Tile tiles_[8];
};

// Kernels for kernels::cpu::use_tile_kernel: one made of these tiles, as on AMX, and one that adds pair after pair, as VDPBF16PS
// does.
extern const kernels::cpu::TileKernel kEmulatedTiles;
extern const kernels::cpu::TileKernel kEmulatedPairs;

// Names one of these, or BLAS, for parameters of tests.
inline std::string name_of(const kernels::cpu::TileKernel* kernel) {
  return kernel == nullptr ? "Blas" : kernel == &kEmulatedPairs ? "Pairs" : "Tiles";
}

// Uses a kernel for tiles, or none, during its lifetime.
class UseTileKernel {
 public:
  explicit UseTileKernel(const kernels::cpu::TileKernel* kernel) { kernels::cpu::use_tile_kernel(kernel); }
  ~UseTileKernel() { kernels::cpu::use_tile_kernel(before_); }
  UseTileKernel(const UseTileKernel&) = delete;
  UseTileKernel& operator=(const UseTileKernel&) = delete;

 private:
  const kernels::cpu::TileKernel* before_ = kernels::cpu::tile_kernel();
};

}  // namespace octet::testing
