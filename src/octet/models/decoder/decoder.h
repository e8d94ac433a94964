// A decoder: embedding, blocks, final norm, head. It is described first and materialised on a device afterwards.
#pragma once

#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <vector>

#include "octet/models/decoder/block.h"
#include "octet/models/decoder/config.h"
#include "octet/models/decoder/fingerprint.h"
#include "octet/nn/embedding.h"
#include "octet/nn/head_loss.h"
#include "octet/nn/norm.h"
#include "octet/parallel/boundary.h"
#include "octet/parallel/units.h"

namespace octet::models {

// One micro-batch in device memory: B sequences of S tokens, of which this rank holds T = B S / ranks of scope.context.
struct Batch {
  std::int64_t batch = 1, seq_len = 0;
  Tensor tokens;      // [T] I32: this rank's part (parallel::context_part)
  Tensor targets;     // [T] I32, -100 is ignored
  Tensor counted;     // [B] I32: how many tokens of each whole sequence have a target; absent: all, or routers have no losses
  Tensor first_keys;  // [T] I32: where the document of each token begins in its sequence; absent: documents see each other
  Tensor positions;   // [T] I32, with first_keys: the position of each token in its document
  std::int64_t documents = 0;          // with first_keys: how many the sequences have together
  Tensor token_numbers;                // [T] I32: nn::Scope::token_numbers; absent: no input of an adapter is dropped
  Fingerprint* fingerprint = nullptr;  // sums what the only micro-batch of a step computes
};

// Adapters of linears of the blocks (nn/adapter.h). All parameters of the model itself are then frozen.
struct Adapters {
  std::int64_t rank = 0;  // 0: there are none, and the model is trained
  double alpha = 1.0;
  bool rslora = false;
  // Modules by the end of their names: "q_proj" is every module "....q_proj". kAllLinear is every linear of the blocks.
  std::vector<std::string> targets = {};
  nn::InputDropout dropout = {};
  std::string file = {};  // the adapter file that names the targets; "": lora.targets does
  explicit operator bool() const { return rank > 0; }
  // The output of an adapter is multiplied by it.
  double scale() const { return alpha / (rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank)); }
};
inline constexpr const char* kAllLinear = "all-linear";

class Decoder {
 public:
  // Makes this rank's part of a pipeline stage; the places are those on the tensor axis and among the ranks that hold different
  // experts. Throws Error{config} for a target that names no module, for targets that name different modules in different
  // experts, and for a rank that is larger than a dim of a module. If a file names the targets, the first and the last are
  // Error{data}.
  Decoder(const DecoderConfig& config, const Recipe& recipe, parallel::TensorPlace place = {},
          parallel::ExpertPlace expert_place = {}, parallel::Stages stages = {}, int stage = 0, const Adapters& adapters = {});
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Allocates this rank's shards of parameters, scales and tables for sequences up to `max_seq_len`. Parameters are zero until
  // they are initialised or loaded; call units().refresh() after that. `groups` must outlive the decoder.
  void materialise(Stream& stream, const parallel::Storage& storage, std::int64_t max_seq_len, const parallel::Groups& groups,
                   const parallel::Layout& layout);

  // Gives a pipeline stage its memory: a stash for each flight, one for the current backward pass, and the messages. They must
  // outlive the decoder's steps. Without this call there is one flight, and it uses the scope's stash.
  struct FlightMemory {
    std::vector<Arena*> stashes;
    Arena* backward = nullptr;
    parallel::Boundary* boundary = nullptr;
  };
  void use(FlightMemory memory) { memory_ = std::move(memory); }

  // With Checkpointing::full, only the first `blocks` blocks keep just their input. The others are selective.
  void keep_inputs_of(int blocks) { full_blocks_ = blocks; }

  // Begins a step of `micro_batches` calls of forward_backward. All gradients start from zero. If `reduces` is false, gradients
  // are not reduced, because nobody reads them.
  void begin_step(std::int64_t micro_batches, bool reduces = true);
  // Returns the number of micro-batches of this step that have begun.
  std::int64_t begun() const { return begun_; }
  // Returns the list of tasks that ends the step. On several ranks, all micro-batches of the step must have begun.
  std::vector<parallel::Task> update_tasks();

  // Runs forward and backward of a micro-batch: total[0] += sum of token losses, total[1] += tokens that count (device
  // scalars). The gradients of the sum are added to the parameters' gradients. With one stage, stash and scratch are as before
  // when it returns. A pipeline stage runs its visits until the next one would load another micro-batch. With lanes, nothing
  // runs until all micro-batches that run together have arrived, each with its own stash and scratch. The call with the step's
  // last micro-batch runs all remaining visits. The tensors of a batch must not change during the next n - 1 calls of a step,
  // if n micro-batches are under way at the same time (parallel::in_flight).
  void forward_backward(const nn::Scope& scope, const Batch& batch, double* total);
  // Runs forward only, and records nothing unless scope.pass is calibration. Adds the loss to `total`, or, if `logits` are given,
  // overwrites them instead: [T, V], of the activations' dtype, for one rank of the tensor axis.
  void evaluate(const nn::Scope& scope, const Batch& batch, double* total, const Tensor& logits = {});

  const DecoderConfig& config() const { return config_; }
  const Recipe& recipe() const { return recipe_; }
  parallel::ParameterStore& parameters() { return parameters_; }
  parallel::Units& units() { return *units_; }
  recipes::ScaleState& scales() { return scales_; }
  const parallel::StepShape& shape() const { return shape_; }
  // Returns the weights of all linears in the order of the forward pass; the head's weight is the last.
  std::vector<nn::LinearWeight*> linears();
  // Returns the same linears, and what the model does around them.
  std::vector<LinearUse> uses();
  // Changes the biases of the routers of this rank's blocks (nn::Moe::update_bias).
  void update_router_biases(Stream& stream, const double* router_total, const float* found_inf) const;
  // Returns the names of the mixtures of experts, in their order.
  std::vector<std::string> mixtures() const;

 private:
  void add_adapters(const Adapters& adapters);
  // A micro-batch and its pass through a chunk: the data that the tasks of the pass share.
  struct MicroBatch;
  struct Flight;
  void run(const std::vector<parallel::Task>& tasks);
  void run(const parallel::Task& task);
  void run(Flight& flight, const parallel::Task& task);
  void load(const parallel::Task& task);
  void finish(Flight& flight);
  // Returns the scope of a block, which may keep more for backward than the first blocks do.
  nn::Scope scope_of_block(const Flight& flight, int block) const;
  void forward(Flight& flight, const parallel::Task& task);
  void recompute(Flight& flight, const parallel::Task& task);
  // Computes the loss and, in training, its gradient; or computes logits.
  void head(Flight& flight);
  void backward(Flight& flight, const parallel::Task& task);
  void begin_backward(Flight& flight);
  void begin_block_backward(Flight& flight, int block);
  // Returns the gradient of a block's output for its producer to write.
  nn::Operand gradient_of(Flight& flight, int number);
  nn::Scope scope_of(const nn::Scope& scope, const Batch& batch) const;

  DecoderConfig config_;
  Recipe recipe_;
  parallel::ParameterStore parameters_;
  recipes::ScaleState scales_;
  std::unique_ptr<parallel::Units> units_;
  parallel::StepShape shape_;
  int full_blocks_ = std::numeric_limits<int>::max();
  FlightMemory memory_;
  // The current step: its micro-batches, how many of them have begun, and whether their gradients are reduced.
  int micro_batches_of_step_ = 1, begun_ = 0;
  bool reduces_ = true;
  std::vector<parallel::Visit> visits_;
  std::size_t under_way_ = 0;  // the most micro-batches between forward and backward at the same time
  std::vector<std::unique_ptr<MicroBatch>> micro_batches_;  // by number modulo under_way_
  std::vector<std::unique_ptr<Flight>> flights_;
  std::unique_ptr<nn::Embedding> embedding_;
  std::optional<nn::PositionEmbedding> position_embedding_;
  std::deque<Block> blocks_;  // of all stages
  const Block& block(int number) const { return blocks_[static_cast<std::size_t>(number)]; }
  std::optional<nn::Norm> final_norm_;
  std::unique_ptr<nn::HeadLoss> head_;
  Buffer rope_buffer_, positions_buffer_;
  Tensor rope_table_;  // [positions, rotated dims] F32
  Tensor positions_;   // [positions] I32: 0, 1, 2, ...
};

}  // namespace octet::models
