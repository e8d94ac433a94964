// Vectors, the unit in which kernels read and write memory: eight adjacent elements of a row, 16 bytes of BF16 or 32 bytes of
// F32.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "octet/numerics/bfloat16.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cuda {

inline constexpr int kVector = 8;  // elements of a vector

// A vector of T as it lies in memory. A word of a BF16 vector holds two elements, the first one in its low half.
template <class T>
struct Vector {
  static constexpr int kParts = kVector * static_cast<int>(sizeof(T)) / 16;
  uint4 parts[kParts];
};
using Bf16Vector = Vector<BFloat16>;

__host__ __device__ inline bool on_multiple(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

// Whether vectors can be read and written at every one of the addresses.
template <class... T>
__host__ __device__ bool are_aligned(const T*... addresses) {
  return (on_multiple(addresses, 16) && ...);
}
// Whether vectors can be read and written at the beginning of every row. True for an absent tensor.
inline bool rows_are_aligned(const Tensor& x) {
  return !x || (are_aligned(x.as_bytes()) && x.row_stride * static_cast<std::int64_t>(size_of(x.dtype)) % 16 == 0);
}
// Whether the rows consist of whole, aligned vectors. True for an absent tensor.
inline bool in_vectors(const Tensor& x) { return rows_are_aligned(x) && (!x || x.cols() % kVector == 0); }

template <class T>
__device__ Vector<T> load_vector(const T* from) {
  Vector<T> vector;
  for (int i = 0; i < Vector<T>::kParts; ++i) vector.parts[i] = reinterpret_cast<const uint4*>(from)[i];
  return vector;
}
template <class T>
__device__ void store_vector(T* to, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(to) = vector;
}
// Stores a vector with one instruction per 16 bytes. The compiler may split the store of store_vector() into smaller ones. It cannot
// split this one, nor move other memory accesses past it, which may cost time.
template <class T>
__device__ void store_vector_unsplit(T* to, const Vector<T>& vector) {
  for (int i = 0; i < Vector<T>::kParts; ++i) {
    const uint4& p = vector.parts[i];
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(to) + i), "r"(p.x), "r"(p.y), "r"(p.z),
                 "r"(p.w)
                 : "memory");
  }
}

// The two BF16 elements of a word.
__device__ inline float low_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// Rounds to nearest like BFloat16(value), but in one instruction and with 0x7FFF for every NaN.
__device__ inline BFloat16 to_bf16(float value) { return BFloat16::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(value))); }
__device__ inline unsigned to_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Converts the elements of a vector to F32.
__device__ inline void unpack(const Vector<float>& vector, float (&values)[kVector]) {
  for (int i = 0; i < 2; ++i) {
    values[4 * i] = __uint_as_float(vector.parts[i].x);
    values[4 * i + 1] = __uint_as_float(vector.parts[i].y);
    values[4 * i + 2] = __uint_as_float(vector.parts[i].z);
    values[4 * i + 3] = __uint_as_float(vector.parts[i].w);
  }
}
__device__ inline void unpack(const Bf16Vector& vector, float (&values)[kVector]) {
  const std::uint32_t words[] = {vector.parts[0].x, vector.parts[0].y, vector.parts[0].z, vector.parts[0].w};
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = low_of(words[i]);
    values[2 * i + 1] = high_of(words[i]);
  }
}

// Rounds each element to nearest, as to_bf16 does, or keeps it if T is float.
template <class T = BFloat16>
__device__ Vector<T> pack(const float (&values)[kVector]) {
  if constexpr (std::is_same_v<T, float>) {
    Vector<float> vector;
    for (int i = 0; i < 2; ++i) {
      vector.parts[i] = {__float_as_uint(values[4 * i]), __float_as_uint(values[4 * i + 1]), __float_as_uint(values[4 * i + 2]),
                         __float_as_uint(values[4 * i + 3])};
    }
    return vector;
  } else {
    return {{{to_bf16(values[0], values[1]), to_bf16(values[2], values[3]), to_bf16(values[4], values[5]),
              to_bf16(values[6], values[7])}}};
  }
}
// Packs and stores, in one instruction per 16 bytes. Builds each word from its two BF16 halves, because with pack() the compiler
// unrolls the loops of some callers further and then runs out of registers.
template <class T>
__device__ void store_packed(T* to, const float (&values)[kVector]) {
  if constexpr (std::is_same_v<T, float>) {
    store_vector_unsplit(to, pack<float>(values));
  } else {
    std::uint32_t words[4];
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      words[i] = std::uint32_t{__bfloat16_as_ushort(pair.x)} | std::uint32_t{__bfloat16_as_ushort(pair.y)} << 16;
    }
    store_vector_unsplit(to, Vector<T>{{{words[0], words[1], words[2], words[3]}}});
  }
}

// A vector or, in kernels of rows that are not aligned, a single element.
template <int kElements>
using Piece = std::conditional_t<kElements == kVector, Bf16Vector, BFloat16>;

template <int kElements>
__device__ const Piece<kElements>& piece_at(const BFloat16* address) {
  return *reinterpret_cast<const Piece<kElements>*>(address);
}
__device__ inline void unpack(BFloat16 element, float (&value)[1]) { value[0] = static_cast<float>(element); }

// The first element.
__device__ inline BFloat16 front(const Bf16Vector& vector) {
  return BFloat16::from_bits(static_cast<std::uint16_t>(vector.parts[0].x));
}
// Inserts a first element, given by its bits, and drops the last one.
__device__ inline Bf16Vector push_front(const Bf16Vector& vector, std::uint16_t bits) {
  const uint4& w = vector.parts[0];
  return {{{w.x << 16 | bits, __funnelshift_l(w.x, w.y, 16), __funnelshift_l(w.y, w.z, 16), __funnelshift_l(w.z, w.w, 16)}}};
}
// Removes the first element and appends a zero.
__device__ inline Bf16Vector pop_front(const Bf16Vector& vector) {
  const uint4& w = vector.parts[0];
  return {{{__funnelshift_r(w.x, w.y, 16), __funnelshift_r(w.y, w.z, 16), __funnelshift_r(w.z, w.w, 16), w.w >> 16}}};
}

}  // namespace octet::kernels::cuda
