#include "octet/kernels/embedding/embedding_cpu.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "octet/base/threads.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kEmbeddingRowsPerTask = 64;
constexpr std::int64_t kColumnsPerTask = 64;

void check_tokens(const Tensor& tokens, std::int64_t vocabulary) {
  const std::int32_t* token = tokens.as<std::int32_t>();
  for (std::int64_t t = 0; t < tokens.rows(); ++t) {
    require(0 <= token[t] && token[t] < vocabulary, "embedding: token ", token[t], " at ", t, " is outside the vocabulary of ",
            vocabulary);
  }
}

// Accumulates columns [begin, end) of gtable. `order` lists `count` tokens
// by table row and then by position; an entry is row * 2^32 + position.
template <class T, class G>
void backward_columns(const EmbeddingBackward& op, const std::int64_t* order, std::int64_t count, std::int64_t begin,
                      std::int64_t end) {
  using R = std::common_type_t<Real<T>, Real<G>>;
  const std::int64_t width = end - begin;
  for (std::int64_t i = 0; i < count;) {
    R sums[kColumnsPerTask] = {};
    const std::int64_t id = order[i] >> 32;
    for (; i < count && order[i] >> 32 == id; ++i) {
      const T* gy = op.gy.as<T>() + (order[i] & 0xFFFFFFFF) * op.gy.row_stride + begin;
      for (std::int64_t c = 0; c < width; ++c) sums[c] += static_cast<R>(static_cast<Real<T>>(gy[c]));
    }
    G* row = op.gtable.as<G>() + id * op.gtable.row_stride + begin;
    for (std::int64_t c = 0; c < width; ++c) {
      row[c] = static_cast<G>(static_cast<Real<G>>(static_cast<R>(static_cast<Real<G>>(row[c])) + sums[c]));
    }
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& op) {
  check_tokens(op.tokens, op.vocabulary > 0 ? op.vocabulary : op.table.rows());
  const std::int32_t* tokens = op.tokens.as<std::int32_t>();
  const std::size_t width = size_of(op.table.dtype);
  parallel_ranges(op.tokens.rows(), kEmbeddingRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::uint8_t* const y = op.y.as_bytes() + static_cast<std::size_t>(t * op.y.row_stride) * width;
      const std::size_t bytes = static_cast<std::size_t>(op.table.cols()) * width;
      const std::int64_t row = tokens[t] - op.first;
      if (row < 0 || row >= op.table.rows()) {
        std::memset(y, 0, bytes);
      } else {
        std::memcpy(y, op.table.as_bytes() + static_cast<std::size_t>(row * op.table.row_stride) * width, bytes);
      }
    }
  });
}

void embedding_backward(const EmbeddingBackward& op, std::int64_t* order) {
  check_tokens(op.tokens, op.vocabulary > 0 ? op.vocabulary : op.gtable.rows());
  const std::int32_t* tokens = op.tokens.as<std::int32_t>();
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < op.tokens.rows(); ++t) {
    const std::int64_t row = tokens[t] - op.first;
    if (0 <= row && row < op.gtable.rows()) order[count++] = (row << 32) | t;
  }
  std::sort(order, order + count);
  visit_float(op.gy.dtype, [&]<class T>() {
    visit_float(op.gtable.dtype, [&]<class G>() {
      parallel_ranges(op.gtable.cols(), kColumnsPerTask,
                      [&](std::int64_t begin, std::int64_t end) { backward_columns<T, G>(op, order, count, begin, end); });
    });
  });
}

}  // namespace octet::kernels::cpu
