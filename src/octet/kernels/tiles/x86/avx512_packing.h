// The instruction of AVX-512 that TilePacker needs.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octet::kernels::cpu {

template <class Tiles>  // each file that includes this passes a type of its own, for the reason that pack_tiles.h gives
struct Avx512Packing {
  template <class Bytes>
  [[gnu::always_inline]] static void look_up(const Bytes& table, const Bytes& indices, Bytes& out) {
    out = reinterpret_cast<Bytes>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(table), reinterpret_cast<__m512i>(indices)));
  }
};

}  // namespace octet::kernels::cpu
