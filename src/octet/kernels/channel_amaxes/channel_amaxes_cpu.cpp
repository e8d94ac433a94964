#include "octet/kernels/channel_amaxes/channel_amaxes_cpu.h"

#include <algorithm>
#include <cmath>

#include "octet/base/threads.h"

namespace octet::kernels::cpu {

void channel_amaxes(const ChannelAmaxes& op) {
  constexpr std::int64_t kChannelsPerTask = 256;
  float* const y = op.y.as<float>();
  visit_float(op.x.dtype, [&]<class T>() {
    parallel_ranges(op.x.shape[1], kChannelsPerTask, [&](std::int64_t begin, std::int64_t end) {
      std::fill(y + begin, y + end, 0.0f);
      for (std::int64_t row = 0; row < op.x.rows(); ++row) {
        const T* const x = op.x.as<T>() + row * op.x.row_stride;
        for (std::int64_t c = begin; c < end; ++c) {
          const float magnitude = std::fabs(static_cast<float>(BFloat16(static_cast<float>(x[c]))));
          y[c] = magnitude > y[c] ? magnitude : y[c];
        }
      }
    });
  });
}

}  // namespace octet::kernels::cpu
