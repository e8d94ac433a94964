// What every layer receives: where it runs, where its memory comes from, how it computes and who watches.
#pragma once

#include <string_view>

#include "octet/comm/group.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::nn {

struct Scope;

// Sees the operands and products of FP8 linears, and the statistics of attention: health samples and dumps. Called in stream
// order; tensors are valid during the call.
class LinearObserver {
 public:
  virtual ~LinearObserver() = default;
  // `source` is what was quantised: BF16, or the weight's primary copy. A weight that this rank holds a part of is not seen in a
  // pass: train::Engine::observe_weights shows it. Backward calls again (scope.record is nothing), with the transposed part,
  // where the first pass leaves that out: of a checkpointed block, and of attention's output.
  virtual void operand(const Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) = 0;
  // Whether products of this linear are wanted: they cost a GEMM each where the layer adds into something else.
  virtual bool wants_products(std::string_view linear) const = 0;
  // `which` is "y", "gx" or "gw"; the product alone in F32, without residual or accumulation.
  virtual void product(const Scope& scope, std::string_view linear, std::string_view which, const Tensor& value) = 0;
  // `lse` [H, T] F32, or F64 on a device that computes in F64: the log-sum-exp of this rank's heads and tokens.
  virtual void attention(const Scope&, std::string_view /*layer*/, const Tensor& /*lse*/) {}
};

// Whether delayed scaling may record: a recompute sees the same tensors again, an evaluation must leave no trace.
enum class Record : std::uint8_t { amax, nothing };

// The purpose of a pass. It decides how activations and gradients are scaled (docs/numerics.md).
enum class Pass : std::uint8_t {
  training,     // as the recipe says
  calibration,  // operands of delayed scaling are cast by their own amax, which their history records
  evaluation,   // an activation whose recipe takes one scale from all tokens at hand has a scale for each token
                // (Recipe::token_scales)
};

// What forward keeps for backward.
enum class Checkpointing : std::uint8_t {
  none,       // everything that backward reads, but codes of attention's output
  selective,  // all but what is cheap to rebuild: norm outputs, SwiGLU outputs and their codes
  full,       // a block's input alone
};

struct Scope {
  Stream& stream;
  Arena& stash;               // lives from forward to backward
  Arena& scratch;             // lives within an op or a block
  DType dtype = DType::bf16;  // of activations
  Record record = Record::amax;
  Pass pass = Pass::training;
  Checkpointing checkpointing = Checkpointing::none;
  LinearObserver* observer = nullptr;
  bool deterministic = false;      // CUDA: ops that would not give the same bits every time take their slower way that does
  comm::Group& context;            // ranks that hold the other parts of the same sequences
  comm::Group& tensor;             // ranks that hold the other parts of the same layers, and other tokens between them (tokens.h)
  comm::Group& expert;             // ranks that hold the other experts of the same layers, and other tokens
  double* router_total = nullptr;  // [2] device, or absent: the router's losses are added (kernels/router)
  Stream* params_stream = nullptr;   // what is exchanged beside the computation; absent: `stream`, and nothing is beside it
  Stream* context_stream = nullptr;  // the same, of what does not wait for gradients of parameters (parallel/units.h)
  std::int64_t batch = 1;            // sequences; T = batch * sequence length / ranks of `context`
  Tensor positions;                  // [T] I32, of each token in its sequence
  Tensor first_keys;           // [T] I32, where the document of each token begins in its sequence; or absent: it sees all before
  std::int64_t documents = 0;  // with first_keys: how many the sequences have together
};

}  // namespace octet::nn
