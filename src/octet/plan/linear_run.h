// One linear of a model with the ops that make its operands: what a micro-batch runs for it, and what an optimizer step does.
// The meta device counts it, for a prediction; a GPU runs it, to be timed.
#pragma once

#include <memory>
#include <vector>

#include "octet/nn/norm.h"
#include "octet/plan/linear_kinds.h"

namespace octet::plan {

struct LinearSetting {
  models::DecoderConfig model;
  std::int64_t batch = 1, seq_len = 0;
  std::int64_t micro_batches = 1;  // of an optimizer step
  parallel::Storage storage;
  std::int64_t tokens() const { return batch * seq_len; }
};

// Tokens that a linear multiplies at a time: the micro-batch, but the head's chunk.
std::int64_t tokens_at_a_time(const LinearKind& kind, const LinearSetting& setting);

class LinearRun {
 public:
  struct Capacity {
    std::size_t stash = 0, scratch = 0;
  };
  // The linear computes as `recipe` does, whatever its skip list and head say. Operands are random.
  LinearRun(Queue& queue, const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting, Capacity capacity);

  // Forward and backward of tokens_at_a_time().
  void micro_batch();
  // The weight's codes, made anew.
  void cast_weight();
  // Delayed scales follow what has run, as after an optimizer step: with scales of 1 codes would be poor in bits, and a GPU
  // faster.
  void update_scales();

  Arena& scratch() { return scratch_; }
  // What a device must give for what has run so far.
  Capacity used() const { return {stash_.high_water(), scratch_.high_water()}; }

 private:
  struct Sources {
    Tensor x;         // of the producer of X: [T, in], or [T, 2 in] for SwiGLU
    Tensor g;         // of the producer of G: [T, out], or [T, out / 2] for SwiGLU, which reads gate_up, too
    Tensor gate_up;   // [T, out]: what SwiGLU or GELU has made X of
    Tensor statistics_x, statistics_g;  // of the norms
    Tensor residual;  // [T, out]: the residual stream, of linears that add to it
    Tensor gradient;  // [T, out]: values of G
    Tensor y, gx;
    Tensor table, positions;
  };
  nn::Scope scope_of_run();
  Tensor filled(const Tensor& x);
  Tensor random(DType dtype, Shape shape);
  void make_rope_table();
  void forward(const nn::Scope& scope, nn::LinearSaved& saved);
  void backward(const nn::Scope& scope, const nn::LinearSaved& saved);

  Queue& queue_;
  LinearKind kind_;
  LinearSetting setting_;
  std::int64_t tokens_;
  parallel::ParameterStore parameters_;
  recipes::ScaleState scales_;
  nn::Linear linear_;
  std::unique_ptr<nn::Norm> norm_x_, norm_g_;
  Arena stash_, scratch_;
  std::unique_ptr<comm::Group> alone_ = comm::make_silent_group("context");
  Sources sources_;
  std::uint32_t draws_ = 0;
};

// What a meta device counts that stands for a GPU, a profile each.
struct LinearOps {
  std::vector<OpTime> micro_batch, weight;
  LinearRun::Capacity capacity;
};
LinearOps count_linear(const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting);

}  // namespace octet::plan
