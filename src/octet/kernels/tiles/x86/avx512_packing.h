// The instructions of AVX-512 that TilePacker needs.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octet::kernels::cpu {

template <class Tiles>  // each file that includes this passes a type of its own, for the reason that pack_tiles.h gives
struct Avx512Packing {
  template <class Codes>
  [[gnu::always_inline]] static void interleave(const std::uint8_t* a, const std::uint8_t* b, Codes& out) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    out = reinterpret_cast<Codes>(_mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)));
  }
  template <class Codes, class Halves>
  [[gnu::always_inline]] static void widen(const Codes& codes, Halves& out) {
    out = reinterpret_cast<Halves>(_mm512_cvtepu8_epi16(reinterpret_cast<__m256i>(codes)));
  }
  template <class Halves>
  [[gnu::always_inline]] static void look_up(const Halves& table, const Halves& indices, Halves& out) {
    out =
        reinterpret_cast<Halves>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(indices), reinterpret_cast<__m512i>(table)));
  }
};

}  // namespace octet::kernels::cpu
