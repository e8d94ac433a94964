// A view of typed memory. It owns nothing: the allocator of the memory determines how long it is valid.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/base/require.h"
#include "octet/device/arena.h"
#include "octet/device/buffer.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet {

// Row-major. A row is a slice of the first dim and is contiguous; rows are `row_stride` elements apart.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t row_stride = 0;

  Tensor() = default;
  Tensor(void* memory, DType type, Shape dims)
      : data(memory), dtype(type), shape(dims), row_stride(dims.rank() > 0 && dims[0] > 0 ? dims.elements() / dims[0] : 1) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t rows() const { return shape[0]; }
  std::int64_t cols() const { return shape.rank() > 1 ? shape.elements() / (shape[0] > 0 ? shape[0] : 1) : 1; }
  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  bool contiguous() const { return row_stride == cols() || rows() <= 1; }

  // The elements as an array of T. T must be the type of the dtype.
  template <class T>
  T* as() const {
    // Kernels call this for each row, so the message must cost nothing unless it is needed.
    if (kDTypeOf<T> != dtype) [[unlikely]]
      require(false, "tensor of ", name_of(dtype), " read as ", name_of(kDTypeOf<T>));
    return static_cast<T*>(data);
  }
  std::uint8_t* as_bytes() const { return static_cast<std::uint8_t*>(data); }

  // Rows [begin, end).
  Tensor slice_rows(std::int64_t begin, std::int64_t end) const {
    require(0 <= begin && begin <= end && end <= rows(), "rows [", begin, ", ", end, ") of ", shape);
    Tensor result = *this;
    result.data = as_bytes() + static_cast<std::size_t>(begin * row_stride) * size_of(dtype);
    result.shape[0] = end - begin;
    return result;
  }
  // Columns [begin, end) of a 2-D tensor.
  Tensor slice_cols(std::int64_t begin, std::int64_t end) const {
    require(shape.rank() == 2 && 0 <= begin && begin <= end && end <= shape[1], "columns [", begin, ", ", end, ") of ", shape);
    Tensor result = *this;
    result.data = as_bytes() + static_cast<std::size_t>(begin) * size_of(dtype);
    result.shape[1] = end - begin;
    return result;
  }
  // The same elements with another shape. The tensor must be contiguous.
  Tensor reshape(Shape dims) const {
    require(contiguous() && dims.elements() == elements(), "reshape of ", shape, " to ", dims);
    return {data, dtype, dims};
  }
  // The same elements as a vector.
  Tensor flat() const { return reshape({elements()}); }
};

inline std::size_t bytes_of(DType dtype, const Shape& shape) {
  return static_cast<std::size_t>(shape.elements()) * size_of(dtype);
}

inline Tensor allocate(Arena& arena, DType dtype, Shape shape) { return {arena.allocate(bytes_of(dtype, shape)), dtype, shape}; }

// Returns the address `bytes` after `memory`. Unlike pointer arithmetic, this is also defined for memory that is not allocated:
// the meta device only counts sizes.
inline void* behind(void* memory, std::size_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) + bytes);
}

inline Tensor view(const Buffer& buffer, DType dtype, Shape shape) {
  require(bytes_of(dtype, shape) <= buffer.bytes(), "a buffer of ", buffer.bytes(), " bytes viewed as ", shape);
  return {buffer.data(), dtype, shape};
}

}  // namespace octet
