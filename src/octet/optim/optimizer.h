// AdamW over all parameters of a store, with clipping by the global norm. A step has two halves, between which the caller may
// move what must move before the weights do (FP8 scales), predicated on found_inf():
//     optimizer.reset_sums(queue);                      // then micro-batches add to loss_total() and to the gradients
//     optimizer.add_squares(queue, scratch, units);     // of all units
//     ... add sums() up over ranks ...
//     optimizer.prepare(queue, {...});                  // norm, clip factor, found_inf, bias corrections
//     ... update scales ...
//     optimizer.update(queue, units);                   // of all units
// Nothing here waits for the device or allocates memory after construction.
#pragma once

#include <cstdint>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/adamw/adamw.h"
#include "octet/parallel/parameter.h"
#include "octet/tensor/tensor.h"

namespace octet::optim {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;   // of parameters whose spec.decay says so
  double max_grad_norm = 1.0;  // 0: no clipping
  std::uint64_t seed = 0;      // of stochastic rounding
};

// The host's part of a step.
struct StepInput {
  double learning_rate = 0.0;
  std::uint32_t step = 0;  // number of this optimizer step, skipped ones included
};

class Optimizer {
 public:
  // Of a store that is materialised with gradients and moments; `store` must outlive the optimizer. Takes a few hundred bytes of
  // MemoryCategory::state.
  Optimizer(Device& device, parallel::ParameterStore& store, const OptimizerOptions& options);

  // [2] F64, device: the sum of losses and the number of tokens of the step, added to by kernels::loss_sum.
  double* loss_total() const;
  // All of sums() are nothing.
  void reset_sums(Queue& queue);

  // [4] F64, device, what the step is known by, to be added up over ranks before prepare():
  //   0     the sum of squares of this rank's parts of gradients, over the ranks that hold the other parts (of what several ranks
  //         of the tensor axis hold, one counts it)
  //   1     how many ranks ask to stop after this step, over all
  //   2, 3  loss_total(), over the ranks that saw other tokens
  Tensor sums() const;
  // This rank asks to stop.
  void ask_to_stop(Queue& queue);
  // Adds the squares of these units' gradients to it; once in a step, when those are complete.
  void add_squares(Queue& queue, Arena& scratch, parallel::UnitRange units);
  void prepare(Queue& queue, const StepInput& input);
  // AdamW of these units' parameters with what `prepare` found. Values and codes are stale afterwards, except BF16 copies of
  // masters, which are written here.
  void update(Queue& queue, parallel::UnitRange units);

  // Device scalar: not 0 when this step is skipped. Valid from prepare on.
  const float* found_inf() const;
  const kernels::StepScalars* scalars() const;
  // Enqueues a copy of the scalars to the host; `host` is valid after the queue has got there.
  void read(Queue& queue, kernels::StepScalars& host) const;
  // The same and a wait; all zero on the meta device.
  kernels::StepScalars read(Queue& queue) const;
  // Whether any of the ranks that sums() were added up over asked to stop after this step. Waits.
  bool stop_asked(Queue& queue) const;

  // [1] I32, device: how many updates were made (t of the bias correction; skipped steps do not count). Checkpoints keep it
  // beside the moments.
  Tensor updates() const;

 private:
  parallel::ParameterStore& store_;
  OptimizerOptions options_;
  Buffer state_;
};

}  // namespace octet::optim
