#include <algorithm>
#include <array>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/decode_table.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cpu {

void decode_codes(const DecodeCodes& op) {
  std::array<BFloat16, 256> values;
  const DecodeTable& table = decode_table(op.q.format);
  const float scale_inv = *op.q.rowwise_scale_inv.as<float>();
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = BFloat16(table.values[code] * scale_inv);
  const std::int64_t cols = op.y.cols();
  constexpr std::int64_t kSmallest = 64 * 1024;  // elements that are worth a thread
  parallel_ranges(op.y.rows(), ceil_div(kSmallest, std::max<std::int64_t>(cols, 1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::uint8_t* const codes = op.q.rowwise.as_bytes() + row * cols;
      auto* const y = op.y.as<BFloat16>() + row * op.y.row_stride;
      for (std::int64_t i = 0; i < cols; ++i) y[i] = values[codes[i]];
    }
  });
}

}  // namespace octet::kernels::cpu
