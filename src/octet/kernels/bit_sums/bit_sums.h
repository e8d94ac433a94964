// Sums over the bits of tensors. Copies that must be equal are compared by their sums instead of all their bytes.
#pragma once

#include <cstdint>

#include "octet/device/device.h"
#include "octet/kernels/tensor_list.h"

namespace octet::kernels {

// For each tensor t: sums[t] = sum over its elements i of bits(i) · (2 i + 1), modulo 2^64, where bits(i) is the bit pattern of
// element i as an unsigned integer of the same size.
//
// Integers may be added in any order, so all devices give the same sums, however they divide the work. 2 i + 1 is odd, so a
// change of one element always changes the sum: a difference that is not 0 modulo 2^64 stays so when it is multiplied by an odd
// number. So do two flipped bits in two elements of at most 32 bits, in tensors of at most 2^31 elements. Other changes of
// several elements can cancel each other, but hardly by chance.
//
// Reads each byte once and writes 8 bytes for each tensor.
struct BitSums {
  const TensorList& x;            // any dtypes; in memory of the device, or in MemoryCategory::host
  std::uint64_t* sums = nullptr;  // [number of tensors], in device memory; overwritten
};
void bit_sums(Stream& stream, const BitSums& op);

}  // namespace octet::kernels
