#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/blocks_cpu.h"
#include "octet/kernels/quantize/decode_table.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cpu {
namespace {

float scale_inv_at(const Quantized& q, std::int64_t row, std::int64_t col) {
  const int width = tile_width(q.tile);
  const std::int64_t at = scale_index(q.rowwise_scale_inv, q.tile, row, width > 0 ? col / width : 0);
  return q.tile == ScaleTile::mx_1x32 ? kDecodeE8M0[q.rowwise_scale_inv.as_bytes()[at]] : q.rowwise_scale_inv.as<float>()[at];
}

HealthSums sums_of_rows(const QuantizeHealth& op, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kWidth = 128;  // no tile ends within this width
  // An element counts as saturated only if it exceeds the largest value by more than the
  // rounding of scale and scale_inv. The largest element of a tile with current scaling is not
  // saturated. Neighbouring BF16 values differ by at least 2^-8, far more than this slack.
  constexpr double kSlack = 1.0 + 0x1p-12;
  const Source source(op.x);
  const DecodeTable& decode = decode_table(op.q.format);
  const double largest = static_cast<double>(fp8_max(op.q.format)) * kSlack;
  Buffer16<size(kWidth)> buffer;
  HealthSums sums;
  for (std::int64_t row = first; row < last; ++row) {
    const std::uint8_t* const codes = op.q.rowwise.as_bytes() + row * op.q.rowwise.row_stride;
    for (std::int64_t col = 0; col < op.x.shape[1]; col += kWidth) {
      const std::int64_t n = std::min(kWidth, op.x.shape[1] - col);
      const BFloat16* const x = source.block(row, col, 1, n, buffer.data()).data;
      float scale_inv = 1.0f;
      for (std::int64_t i = 0; i < n; ++i) {
        if (i % 32 == 0) scale_inv = scale_inv_at(op.q, row, col + i);
        const double value = static_cast<float>(x[i]);
        const std::uint8_t code = codes[col + i];
        sums.saturated += std::fabs(value) > largest * static_cast<double>(scale_inv);
        sums.nonzero += value != 0.0;
        sums.flushed += value != 0.0 && (code & 0x7F) == 0;
        const double error = value - static_cast<double>(decode[code] * scale_inv);
        if (!std::isfinite(value) || !std::isfinite(error)) continue;
        sums.finite_nonzero += value != 0.0;
        sums.signal += value * value;
        sums.fourth += value * value * (value * value);
        sums.noise += error * error;
      }
    }
  }
  return sums;
}

// The geometric mean of the finite scales.
double mean_scale(const Quantized& q) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < q.rowwise_scale_inv.elements(); ++i) {
    const double inverse = q.tile == ScaleTile::mx_1x32 ? kDecodeE8M0[q.rowwise_scale_inv.as_bytes()[i]]
                                                        : static_cast<double>(q.rowwise_scale_inv.as<float>()[i]);
    if (!std::isfinite(inverse) || inverse <= 0.0) continue;
    sum -= std::log2(inverse);
    ++count;
  }
  return count == 1 ? std::exp2(sum) : count > 0 ? std::exp2(sum / static_cast<double>(count)) : 1.0;
}

}  // namespace

void quantize_health(const QuantizeHealth& op, HealthSums* sums) {
  const std::int64_t rows = op.x.rows();
  parallel_ranges(rows, kHealthRows,
                  [&](std::int64_t first, std::int64_t last) { sums[first / kHealthRows] = sums_of_rows(op, first, last); });
  HealthSums total;
  for (std::int64_t i = 0; i < ceil_div(rows, kHealthRows); ++i) {
    total.signal += sums[i].signal;
    total.noise += sums[i].noise;
    total.fourth += sums[i].fourth;
    total.finite_nonzero += sums[i].finite_nonzero;
    total.saturated += sums[i].saturated;
    total.flushed += sums[i].flushed;
    total.nonzero += sums[i].nonzero;
  }
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole > 0 ? static_cast<float>(static_cast<double>(part) / static_cast<double>(whole)) : 0.0f;
  };
  amax(op.x, &op.out[0]);
  op.out[1] = static_cast<float>(mean_scale(op.q));
  op.out[2] = share(total.saturated, op.x.elements());
  op.out[3] = share(total.flushed, total.nonzero);
  op.out[4] = total.noise > 0 ? static_cast<float>(10.0 * std::log10(total.signal / total.noise))
                              : std::numeric_limits<float>::infinity();
  const auto n = static_cast<double>(std::max<std::int64_t>(total.finite_nonzero, 1));
  op.out[5] = total.signal > 0 ? static_cast<float>(n * total.fourth / (total.signal * total.signal)) : 0.0f;
  op.out[6] = static_cast<float>(std::sqrt(total.signal / n));
}

}  // namespace octet::kernels::cpu
