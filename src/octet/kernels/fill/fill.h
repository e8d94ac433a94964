// Initialisation of parameters with random values, and of gradients with zeros.
#pragma once

#include <cstdint>

#include "octet/device/device.h"
#include "octet/kernels/global_elements.h"
#include "octet/kernels/tensor_list.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// x[i] = mean + deviation * n, where n is the standard normal number of (seed, RngStream::init, subject, elements.at(i)).
// Computed in F64, rounded to FP32 and then to x's dtype. All devices and all shardings of a parameter give the same bits.
struct FillNormal {
  Tensor x;  // any shape, contiguous; F32, BF16 or F64; overwritten
  double mean = 0.0, deviation = 1.0;
  std::uint64_t seed = 0;
  std::uint32_t subject = 0;  // name_id of the parameter
  GlobalElements elements = {};
};
void fill_normal(Stream& stream, const FillNormal& op);

// Sets all elements of all tensors of `x` to zero, in one launch.
struct Zero {
  const TensorList& x;
};
void zero(Stream& stream, const Zero& op);

}  // namespace octet::kernels
