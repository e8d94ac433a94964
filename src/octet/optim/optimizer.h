// AdamW over all parameters of a store, with gradient clipping by the global norm. A step has two halves. Between them the caller
// may enqueue work that must precede the change of the weights, such as the update of FP8 scales. That work must read found_inf()
// on the device and change nothing if the step is skipped:
//     optimizer.reset_sums(stream);                      // then micro-batches add to loss_total() and to the gradients
//     optimizer.add_squares(stream, scratch, units);     // for all units
//     optimizer.add_up_ranks(scratch, groups, units);    // if there are several
//     optimizer.prepare(stream, {...});                  // norm, clip factor, found_inf, bias corrections
//     ... update scales ...
//     optimizer.update(stream, number);                  // of all parameters' shards
// Only read() and requests() wait for the device, as noted below. No function allocates memory after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/adamw/adamw.h"
#include "octet/kernels/tensor_list.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/units.h"
#include "octet/tensor/tensor.h"

namespace octet::optim {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;   // for parameters whose spec.decay is true
  double max_grad_norm = 1.0;  // 0: no clipping
  std::uint64_t seed = 0;      // seed of stochastic rounding
};

// The inputs of a step that the host determines.
struct StepInput {
  double learning_rate = 0.0;
  std::uint32_t step = 0;  // number of this optimizer step, including skipped ones
};

// Requests of a rank to all ranks, which all ranks learn at the same time.
struct Requests {
  bool stop = false;      // after this step
  bool snapshot = false;  // of the state after this step, in memory; none is taken if a rank is busy
  bool busy = false;      // with the snapshot before
  bool failed = false;    // this rank has no complete last snapshot
};

class Optimizer {
 public:
  // The store must be materialised with gradients and moments, and must outlive the optimizer. Allocates a few hundred bytes of
  // MemoryCategory::state, and on a GPU tables of all tensors. `work` says what one call of add_squares() or of update()
  // processes.
  Optimizer(Device& device, parallel::ParameterStore& store, const OptimizerOptions& options, const parallel::UpdateWork& work);
  // The same, with all units processed in each call.
  Optimizer(Device& device, parallel::ParameterStore& store, const OptimizerOptions& options)
      : Optimizer(device, store, options, {.units = {store.all_units()}, .pieces = {store.states(store.all_units())}}) {}

  // [2] F64, device: the sum of losses and the number of tokens of the step. kernels::loss_sum adds to both.
  double* loss_total() const;
  // Sets all of sums() to zero. Call it at the beginning of a step.
  void reset_sums(Stream& stream);

  // [4] F64, device. add_up_ranks() adds each element up over the ranks named here:
  //   0     the sum of squares of this rank's gradient shards; over the ranks that hold the other shards. If several ranks of the
  //         tensor axis hold the same piece, only one of them counts it.
  //   1     what the ranks ask for after this step; over all ranks
  //   2, 3  loss_total(); over the ranks that process different tokens
  Tensor sums() const;
  // Records in sums() what this rank asks for after this step.
  void ask(Stream& stream, Requests requests);
  // Adds the squares of these units' gradients to sums(). Call it once per unit and step, when the unit's gradients are
  // complete. `units` must be one of the ranges given to the constructor. The number of launches does not depend on the number
  // of units.
  void add_squares(Stream& stream, Arena& scratch, parallel::UnitRange units);
  // Sums sums() over the ranks, on the exchange stream of `units`. All ranks call it together, before prepare().
  void add_up_ranks(Arena& scratch, const parallel::Groups& groups, parallel::Units& units);
  // Computes the scalars that read() returns from sums().
  void prepare(Stream& stream, const StepInput& input);
  // Updates pieces[number] of UpdateWork with AdamW and the scalars of prepare(), in one launch for each combination of dtypes.
  // Values and codes are then stale, except BF16 copies of master weights, which this function also writes.
  void update(Stream& stream, std::size_t number = 0);

  // Device scalar: not 0 if this step is skipped. Valid after prepare().
  const float* found_inf() const;
  // Enqueues a copy of the scalars to the host. `host` is valid once the stream has executed the copy.
  void read(Stream& stream, kernels::StepScalars& host) const;
  // Copies the scalars to the host and waits. All are zero on the meta device.
  kernels::StepScalars read(Stream& stream) const;
  // What any rank asked for after this step. Waits for the stream. Call it after sums() was added up over the ranks.
  Requests requests(Stream& stream) const;

  // [1] I32, device: the number of updates made, t of the bias correction. Skipped steps do not count. Checkpoints store it
  // together with the moments.
  Tensor updates() const;

 private:
  struct Squares {
    parallel::UnitRange units;
    kernels::TensorList gradients;
  };
  std::vector<kernels::AdamWList> lists_of(Device& device, const std::vector<parallel::StatePiece>& pieces) const;
  Squares squares_of(Device& device, parallel::UnitRange units) const;

  parallel::ParameterStore& store_;
  OptimizerOptions options_;
  Buffer state_;
  std::vector<Squares> squares_;
  std::vector<std::vector<kernels::AdamWList>> updates_;  // of each set of pieces, a list for each combination of dtypes
};

}  // namespace octet::optim
