// Runs one linear of a model and the ops that make its operands, as a micro-batch and an optimizer step do. The meta device
// counts the work, for a prediction; a GPU runs it, for a measurement.
#pragma once

#include <memory>
#include <vector>

#include "octet/nn/norm.h"
#include "octet/plan/linear_kinds.h"

namespace octet::plan {

struct LinearSetting {
  models::DecoderConfig model;
  std::int64_t batch = 1, seq_len = 0;
  std::int64_t micro_batches = 1;  // micro-batches of an optimizer step
  parallel::Storage storage;
  std::int64_t tokens() const { return batch * seq_len; }
};

// The tokens that a linear multiplies at a time: a whole micro-batch, or a chunk of it if the linear is the head.
std::int64_t tokens_at_a_time(const LinearKind& kind, const LinearSetting& setting);

class LinearRun {
 public:
  struct Capacity {
    std::size_t stash = 0, scratch = 0;
  };
  // The linear computes in the precision of `recipe`, even if the recipe's `skip` or `head` leaves it in BF16. Operands are
  // random. Experts are chosen equally often.
  LinearRun(Stream& stream, const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting, Capacity capacity);

  // Runs forward and backward for tokens_at_a_time() tokens.
  void micro_batch();
  // Casts the weight again, unless it is frozen.
  void cast_weight();
  // Updates delayed scales as after an optimizer step. With the initial scales of 1, the codes would use few bits, and a GPU
  // computes faster on such data.
  void update_scales();

  Arena& scratch() { return scratch_; }
  // The memory that the calls so far needed.
  Capacity used() const { return {stash_.high_water(), scratch_.high_water()}; }

 private:
  struct Sources {
    Tensor x;                           // [T, in], or [T, 2 in] for SwiGLU: input of the op that produces X
    Tensor g;                           // [T, out], or [T, out / 2] for SwiGLU: gradient that the op that produces G reads
    Tensor gate_up;                     // [T, out]: the forward input of SwiGLU or GELU, which its backward reads
    Tensor statistics_x, statistics_g;  // statistics of the norms
    Tensor residual;                    // [T, out]: the residual stream, if the linear adds to it
    Tensor normed;                      // [T, out]: what the norm reads whose backward produces G
    Tensor gradient;                    // [T, out]: the values of G
    Tensor y, gx;
    Tensor table, positions;
  };
  nn::Scope scope_of_run();
  void share_rows();
  Tensor filled(const Tensor& x);
  Tensor random(DType dtype, Shape shape);
  void make_rope_table();
  nn::Operand forward(const nn::Scope& scope);  // returns X, as wgrad reads it
  void backward(const nn::Scope& scope, const nn::Operand& x);

  Stream& stream_;
  LinearKind kind_;
  LinearSetting setting_;
  std::int64_t tokens_;                  // T: the rows of the linear's operands
  parallel::ParameterStore parameters_;  // all of them frozen, or none but the adapter
  recipes::ScaleState scales_;
  nn::Linear linear_;
  nn::Norm norm_x_, norm_g_;
  Arena stash_, scratch_;
  std::unique_ptr<comm::Group> alone_ = comm::make_silent_group("context");
  Sources sources_;
  RowGroups groups_;  // of the rows of experts
  std::uint32_t draws_ = 0;
};

// The ops of a micro-batch and of the weight's cast, counted on a meta device that stands for a GPU.
struct LinearOps {
  std::vector<OpTime> micro_batch, weight;
  LinearRun::Capacity capacity;
};
LinearOps count_linear(const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting);

}  // namespace octet::plan
