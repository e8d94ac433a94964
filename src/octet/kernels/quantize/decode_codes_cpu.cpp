#include <array>

#include "octet/base/threads.h"
#include "octet/kernels/quantize/decode_table.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cpu {

void decode_codes(const DecodeCodes& op) {
  std::array<BFloat16, 256> values;
  const DecodeTable& table = decode_table(op.q.format);
  const float scale_inv = *op.q.rowwise_scale_inv.as<float>();
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = BFloat16(table.values[code] * scale_inv);
  const std::uint8_t* const codes = op.q.rowwise.as_bytes();
  auto* const y = op.y.as<BFloat16>();
  constexpr std::int64_t kSmallest = 64 * 1024;  // elements that are worth a thread
  parallel_ranges(op.y.elements(), kSmallest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = values[codes[i]];
  });
}

}  // namespace octet::kernels::cpu
