// Helpers that RMSNorm and LayerNorm share.
#pragma once

#include <cstdint>

#include "octet/tensor/tensor.h"

namespace octet::kernels {

// The dtype of means and reciprocal standard deviations of rows.
inline DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

template <class T>
T* row_of(const Tensor& tensor, std::int64_t row) {
  return tensor.as<T>() + row * tensor.row_stride;
}

}  // namespace octet::kernels
