// The grid of a kernel whose blocks each compute a rectangle of a matrix.
#pragma once

#include <algorithm>
#include <cstdint>

#include "octet/base/math.h"

namespace octet::kernels::cuda {

// Blocks of `height` x `width` elements, row after row. All lie along x, because gridDim.y ends at 65,535 and a mixture may have
// more rows of blocks.
struct BlockGrid {
  int down, across;

  BlockGrid(std::int64_t rows, std::int64_t height, std::int64_t cols, std::int64_t width)
      : down(static_cast<int>(std::max<std::int64_t>(1, ceil_div(rows, height)))),
        across(static_cast<int>(std::max<std::int64_t>(1, ceil_div(cols, width)))) {}
  unsigned blocks() const { return static_cast<unsigned>(down) * static_cast<unsigned>(across); }

  __device__ int row() const { return static_cast<int>(blockIdx.x) / across; }
  __device__ int col() const { return static_cast<int>(blockIdx.x) % across; }
  // Begins with the last rows, which the previous kernel left in the cache.
  __device__ int row_from_end() const { return down - 1 - row(); }
};

}  // namespace octet::kernels::cuda
