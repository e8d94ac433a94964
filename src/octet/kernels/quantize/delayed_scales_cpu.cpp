#include <algorithm>

#include "octet/kernels/quantize/quantize_cpu.h"
#include "octet/numerics/scale.h"

namespace octet::kernels::cpu {

void update_delayed_scales(const UpdateDelayedScales& op) {
  const std::int64_t tensors = op.amax_history.rows(), length = op.amax_history.shape[1];
  const bool skipped = op.found_inf && *op.found_inf != 0.0f;
  for (std::int64_t i = 0; i < tensors; ++i) {
    float* const history = op.amax_history.as<float>() + i * op.amax_history.row_stride;
    const bool entered = !skipped && history[0] > 0.0f && is_finite(history[0]);
    if (!entered) {
      if (op.is_weight.as_bytes()[i] == 0) history[0] = 0.0f;
      continue;
    }
    const float amax = op.most_recent ? history[0] : *std::max_element(history, history + length);
    op.scale.as<float>()[i] = delayed_scale(amax, static_cast<Fp8Format>(op.format.as_bytes()[i]), op.margin);
    std::copy_backward(history, history + length - 1, history + length);
    history[0] = 0.0f;
  }
}

}  // namespace octet::kernels::cpu
