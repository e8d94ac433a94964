// AdamW with decoupled weight decay and bias correction (Loshchilov and Hutter, 2019), one parameter.
#pragma once

#include <cstdint>

#include "octet/device/device.h"
#include "octet/kernels/global_elements.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// What changes from step to step, in device memory: the host decides nothing within a step. Written by prepare_step, once per
// step.
struct StepScalars {
  double loss_sum;         // over the tokens of the step
  double token_count;
  double grad_norm;        // of the mean gradient, before clipping
  double grad_scale;       // clip factor / token count: what a summed gradient is multiplied by
  double learning_rate;
  double bias_correction1; // 1 - beta1^t, t the number of updates made, this one included
  double bias_correction2;
  float found_inf;         // 1 when the loss or the gradient norm is not finite: nothing moves
  std::uint32_t step;      // number of this optimizer step; keys stochastic rounding
  std::int32_t updates;    // t: updates made, this one included unless found_inf
};

struct AdamW {
  Tensor grad;      // [n] F32, BF16 or F64: the sum over tokens
  Tensor weight;    // [n] F32 (master), F64, or BF16 (then rounded stochastically); updated
  Tensor moment1;   // [n] F32, F64 or BF16 (rounded stochastically); updated
  Tensor moment2;   // [n] likewise
  Tensor value;     // [n] BF16 copy of an F32 weight, rounded to nearest; overwritten; optional
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;
  // Stochastic rounding is keyed by (seed, step, subject, global element): any cut of a parameter gives the same bits.
  std::uint64_t seed = 0;
  std::uint32_t subject = 0;             // name_id of the parameter
  GlobalElements elements = {};          // runs of columns in groups of 8
  const StepScalars* scalars = nullptr;  // device
};
// With g = grad * grad_scale:  w -= lr * decay * w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
//   w -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + epsilon).
// In FP32 (F64 for F64 weights) and in torch.optim.AdamW's order of operations; factors that do not depend on the element in
// F64, rounded once. The weight is moved by the moments as computed, before they are rounded to BF16. Moments are both of one
// dtype: F64 with F64 weights, else F32 or BF16. Nothing is touched when scalars->found_inf is not 0.
void adamw(Queue& queue, const AdamW& op);

// Completes the scalars of a step from the sums. Enqueue once per step, after the gradients are final.
//   mean = 1 / token_count;  grad_norm = sqrt(sum_squares) * mean;  found_inf = loss or norm not finite, or no token;
//   clip = max_grad_norm > 0 ? min(1, max_grad_norm / (grad_norm + 1e-6)) : 1;  grad_scale = clip * mean;
//   t = *updates + 1;  bias_correction = 1 - beta^t;  unless found_inf, *updates = t.
struct PrepareStep {
  const double* loss_total = nullptr;   // [2] device: sum of losses, number of tokens
  const double* sum_squares = nullptr;  // [1] device: of the summed gradient, every parameter counted once
  double max_grad_norm = 0.0;           // 0: no clipping
  double beta1 = 0.9, beta2 = 0.95;
  double learning_rate = 0.0;           // of this step
  std::uint32_t step = 0;               // of this step
  std::int32_t* updates = nullptr;      // device: the number of updates made so far. On the device because the host does not
                                        // know in time which steps were skipped; part of a checkpoint
  StepScalars* scalars = nullptr;       // device; overwritten
};
void prepare_step(Queue& queue, const PrepareStep& op);

}  // namespace octet::kernels
