#include "octet/kernels/dropout/dropout_cpu.h"

#include <algorithm>

#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/kernels/elementwise/convert.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kBlocksAtOnce = 16;  // of four features, whose words are made together

template <class T>
void drop_row(const Dropout& op, const Rng& rng, std::int64_t row, std::int64_t expert) {
  const T* const x = op.x.as<T>() + row * op.x.row_stride;
  T* const y = op.y.as<T>() + row * op.y.row_stride;
  const std::uint64_t token = static_cast<std::uint32_t>(op.tokens.as<std::int32_t>()[row]);
  const std::uint64_t first = token << 32 | static_cast<std::uint64_t>(expert) << kFeatureBits;
  const std::int64_t begin = op.first_feature, end = begin + op.x.cols();
  const std::uint32_t threshold = op.threshold();
  for (std::int64_t block = begin / 4; 4 * block < end; block += kBlocksAtOnce) {
    std::uint32_t words[4][kBlocksAtOnce];
    rng.words(first | static_cast<std::uint64_t>(block), op.step, words);
    const std::int64_t last = std::min(end, 4 * (block + kBlocksAtOnce));
    for (std::int64_t feature = std::max(begin, 4 * block); feature < last; ++feature) {
      const bool keeps = words[feature % 4][feature / 4 - block] >= threshold;
      const std::int64_t i = feature - begin;
      if (!op.adds) {
        y[i] = keeps ? x[i] : T{};
      } else if (keeps) {
        y[i] = sum(y[i], x[i]);
      }
    }
  }
}

}  // namespace

void dropout(const Dropout& op) {
  constexpr std::int64_t kElementsPerTask = 16 * 1024;
  const Rng rng(op.seed, RngStream::dropout, op.subject);
  visit_float(op.x.dtype, [&]<class T>() {
    const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, op.x.cols()));
    parallel_ranges(op.x.rows(), rows_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int32_t group = op.groups ? op.groups.tiles.as<std::int32_t>()[row / kGroupRows] : 0;
        if (group >= 0) drop_row<T>(op, rng, row, op.first_expert + group);
      }
    });
  });
}

}  // namespace octet::kernels::cpu
