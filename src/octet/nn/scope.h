// What every layer receives: its stream, its memory, its precision, its groups of ranks and the watch.
#pragma once

#include <functional>

#include "octet/comm/group.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/nn/watch.h"
#include "octet/numerics/recipe.h"
#include "octet/parallel/layout.h"
#include "octet/parallel/streams.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/row_groups.h"
#include "octet/tensor/tensor.h"

namespace octet::nn {

// The dtype of statistics of rows (mean, rstd, log-sum-exp, loss): FP32, or F64 if the pass computes in F64.
constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// Whether delayed scaling records amaxes. A recompute must not, because it sees the same tensors again; neither may an
// evaluation, which must leave no trace.
enum class Record : std::uint8_t { amax, nothing };

// The purpose of a pass. It decides how activations and gradients are scaled (docs/numerics.md).
enum class Pass : std::uint8_t {
  training,     // as the recipe says
  calibration,  // casts operands of delayed scaling with current scales and records their amaxes in the histories
  evaluation,   // an activation whose recipe takes one scale from all tokens at hand has a scale for each token
                // (Recipe::token_scales)
};

// What forward keeps for backward.
enum class Checkpointing : std::uint8_t {
  none,       // everything that backward reads, except the codes of attention's output, which backward makes again
  selective,  // all but what is cheap to rebuild: norm outputs, SwiGLU outputs and their codes
  full,       // a block's input alone
};

struct Scope {
  Stream& stream;             // of the computation
  std::reference_wrapper<Arena> stash;  // lives from forward to backward
  Arena& scratch;             // lives within an op or a block
  DType dtype = DType::bf16;  // of activations
  Record record = Record::amax;
  bool rebuilds = false;  // whether a backward pass is making operands again that forward did not keep
  Pass pass = Pass::training;
  Checkpointing checkpointing = Checkpointing::none;
  parallel::Overwrites overwrites = parallel::Overwrites::all;  // backward: the gradients of weights that products write
  Watch* watch = nullptr;
  bool deterministic = false;      // CUDA: ops that would not give the same bits every time take a slower way that does
  comm::Group& context;            // ranks that have the other parts of the same sequences
  comm::Group& tensor;             // ranks that have the other parts of the same layers, and share the tokens (nn/sequence.h)
  comm::Group& expert;             // ranks that have the other experts of the same layers, and other tokens
  // [2 + M E] device, optional: the losses of the routers of M mixtures are added, and how often each expert of each was chosen
  // (kernels/router).
  double* router_total = nullptr;
  const parallel::Streams* streams = nullptr;  // of exchanges beside the computation; absent: they run on `stream`
  std::int64_t batch = 1;      // sequences; T = batch * sequence length / ranks of `context`
  Tensor counted;              // [B] I32, optional: how many tokens of each sequence count in the loss; absent: all
  Tensor rope_table;           // [positions, R] F32; R dims of a head are rotated
  Tensor positions;            // [T] I32: the position of each token in its sequence, or in its document
  Tensor first_keys;           // [T] I32, optional: where the document of each token begins in its sequence
  std::int64_t documents = 0;  // with first_keys: how many the sequences have together
  const RowGroups* groups = nullptr;  // within a mixture: the rows of this rank's experts
  // In a training step whose adapters drop inputs (nn/adapter.h): the number of each row's token, [T] I32, counted through the
  // data of the run modulo 2^32; absent elsewhere. And the number of the step.
  Tensor token_numbers;
  std::uint32_t step = 0;

  Stream& stream_of(parallel::StreamId id) const { return streams ? (*streams)[id] : stream; }
};

// Returns the scope of a pass that repeats, bit for bit, a pass that has been recorded.
inline Scope without_record(const Scope& scope) {
  Scope again = scope;
  again.record = Record::nothing;
  return again;
}

// Returns the scope of products that follow others in a pass and add to the gradients that those have begun.
inline Scope adding(const Scope& scope) {
  Scope later = scope;
  later.overwrites = parallel::Overwrites::none;
  return later;
}

// Returns the scope in which a backward pass makes operands again that forward did not keep. They live within the block.
inline Scope rebuild_scope(const Scope& scope) {
  Scope again = without_record(scope);
  again.rebuilds = true;
  again.stash = scope.scratch;
  return again;
}

}  // namespace octet::nn
