// AdamW with decoupled weight decay and bias correction (Loshchilov and Hutter, 2019), for one parameter or for a list of them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "octet/device/device.h"
#include "octet/kernels/global_elements.h"
#include "octet/kernels/op_table.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// The values of a step that are known only on the device or change from step to step. prepare_step writes them once per step, in
// device memory, so that the host need not wait within a step.
struct StepScalars {
  double loss_sum;     // sum of the losses of the step's tokens
  double token_count;  // number of tokens in loss_sum
  double grad_norm;    // norm of the mean gradient, before clipping
  double grad_scale;   // clip factor / token count; multiplies the summed gradient
  double learning_rate;
  double bias_correction1;  // 1 - beta1^t; t counts the updates including this one
  double bias_correction2;  // 1 - beta2^t
  float found_inf;          // 1 if the loss or the gradient norm is not finite; the step then changes nothing
  std::uint32_t step;       // number of this optimizer step; keys stochastic rounding
  std::int32_t updates;     // t; does not include this step if found_inf is 1

  // The mean loss of the step's tokens; NaN if there are none.
  double mean_loss() const {
    const double mean = loss_sum / token_count;
    return mean == mean ? mean : std::numeric_limits<double>::quiet_NaN();  // 0 / 0 would be printed as -nan
  }
};

struct AdamW {
  Tensor grad;                          // [n] F32, BF16 or F64: the gradient summed over tokens
  Tensor weight;                        // [n] F32 (master weight), F64, or BF16, which is rounded stochastically; updated
  Tensor moment1;                       // [n] F32, F64, BF16 (rounded stochastically) or E4M3 (fp8_moments.h); updated
  Tensor moment2;                       // [n] as moment1; E4M3: the codes of its root; updated
  Tensor value;                         // [n] BF16 copy of an F32 weight, rounded to nearest; overwritten; optional
  Tensor moment1_scale, moment2_scale;  // [ceil(n / 128)] F32 scales of E4M3 moments; overwritten; absent otherwise
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;
  // Stochastic rounding depends on (seed, step, subject, global
  // element), so the bits do not depend on how a parameter is sharded.
  std::uint64_t seed = 0;
  std::uint32_t subject = 0;             // name_id of the parameter
  GlobalElements elements = {};          // columns must come in groups of 8; with E4M3 moments everything in groups of 128
  const StepScalars* scalars = nullptr;  // in device memory
};
// With g = grad * grad_scale:  w -= lr * decay * w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
//   w -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + epsilon).
// Computed in FP32 (F64 for F64 weights) and in the order of operations of torch.optim.AdamW. Factors that are the same for all
// elements are computed in F64 and rounded once. The update uses the moments before they are rounded to BF16 or E4M3. Both
// moments have the same dtype: F64 with F64 weights, otherwise F32, BF16 or E4M3. If scalars->found_inf is not 0, nothing is
// changed.
void adamw(Stream& stream, const AdamW& op);

// What a GPU reads of one op of a list. A group has kGroup *global* elements, those of one Philox block.
struct AdamWItem {
  static constexpr std::int64_t kGroup = 8;
  static constexpr std::int64_t kChunkGroups = 1024;  // groups of a chunk
  const void* grad = nullptr;
  void *weight = nullptr, *moment1 = nullptr, *moment2 = nullptr, *value = nullptr;
  float *moment1_scale = nullptr, *moment2_scale = nullptr;
  std::int64_t count = 0;
  std::int64_t skip = 0, groups = 0;  // the first group begins `skip` elements before element 0
  GlobalElements elements = {};
  double weight_decay = 0;
  std::uint32_t subject = 0;
  bool aligned = false;  // every group begins at a multiple of 16 bytes

  AdamWItem() = default;
  explicit AdamWItem(const AdamW& op);
  std::int64_t chunks() const { return ceil_div(groups, kChunkGroups); }
};

// Ops that one launch runs. They may differ in their tensors, weight_decay, subject and elements. Everything else must be
// equal, including the dtypes.
class AdamWList {
 public:
  AdamWList() = default;
  // Writes the table of the ops in device memory.
  AdamWList(Device& device, std::vector<AdamW> ops);
  const std::vector<AdamW>& ops() const { return ops_; }
  const OpTable<AdamWItem>& table() const { return table_; }
  const Work& work() const { return work_; }

 private:
  std::vector<AdamW> ops_;
  OpTable<AdamWItem> table_;
  Work work_;
};
// The same as adamw() for each op of the list, in one launch.
void adamw(Stream& stream, const AdamWList& list);

// Computes the scalars of a step from sums. Enqueue it once per step, after the gradients are final.
//   mean = 1 / token_count;  grad_norm = sqrt(sum_squares) * mean;  found_inf = loss or norm not finite, or no token;
//   clip = max_grad_norm > 0 ? min(1, max_grad_norm / (grad_norm + 1e-6)) : 1;  grad_scale = clip * mean;
//   t = *updates + 1;  bias_correction = 1 - beta^t;  unless found_inf, *updates = t.
struct PrepareStep {
  const double* loss_total = nullptr;   // [2] device: sum of the losses, number of tokens
  const double* sum_squares = nullptr;  // [1] device: sum of squares of the summed gradient over all parameters
  double max_grad_norm = 0.0;           // 0: no clipping
  double beta1 = 0.9, beta2 = 0.95;
  double learning_rate = 0.0;       // learning rate of this step
  std::uint32_t step = 0;           // number of this step
  std::int32_t* updates = nullptr;  // device: number of updates made so far; part of a checkpoint. It is on the device
                                    // because the host learns too late which steps were skipped
  StepScalars* scalars = nullptr;   // device; overwritten
};
void prepare_step(Stream& stream, const PrepareStep& op);

}  // namespace octet::kernels
