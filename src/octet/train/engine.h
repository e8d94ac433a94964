// Everything one rank computes with: device, model, optimizer and the memory of a step, which is measured on the meta device
// first.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "octet/comm/group.h"
#include "octet/data/loader.h"
#include "octet/kernels/gemm/gemm_tuning.h"
#include "octet/models/decoder/decoder.h"
#include "octet/optim/optimizer.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/whole.h"

namespace octet::train {

struct EngineOptions {
  models::DecoderConfig model;
  Recipe recipe;
  bool training = true;     // false: no gradients and moments; evaluate() and logits() only
  bool calibrates = false;  // calibrate() will be called
  bool master_weights = true;
  DType grad_dtype = DType::f32;
  DType moments_dtype = DType::f32;
  std::int64_t seq_len = 0;
  std::int64_t micro_batch_size = 1;
  nn::Checkpointing checkpointing = nn::Checkpointing::none;
  bool deterministic = false;  // the same bits every time on a GPU, too
  optim::OptimizerOptions optimizer;
  nn::Watch* watch = nullptr;    // whose memory the plan must hold: the one that will watch some of the steps
  parallel::Layout layout = {};  // of the mesh of all ranks; this is `rank`
  int rank = 0;
  bool document_mask = false;  // no token sees another document; on CUDA not with `deterministic`
  bool whole_logits = false;   // room for the logits of a micro-batch (probe, generate)
};

// Bytes by category, to the byte what an Engine with these options takes of its device.
struct MemoryPlan {
  std::array<std::size_t, kMemoryCategories> bytes{};
  std::size_t snapshot = 0;   // host memory: what this rank adds to a checkpoint
  std::size_t total() const;  // of `bytes`
  Work step;                  // of one micro-batch, forward and backward, and one optimizer step
};

MemoryPlan measure(const EngineOptions& options, DeviceKind device);

class Engine {
 public:
  // Of one rank, or on the meta device. Takes all memory now. Parameters are zero: initialise or load them, then call refresh().
  Engine(const EngineOptions& options, DeviceKind device);
  // On a device that outlives the engine, as this rank's groups on the mesh do.
  Engine(const EngineOptions& options, Device& device, const parallel::Groups& groups);

  // All ranks of context and tensor groups are given the same, whole sequences, of which each takes its part.
  // The gradient of one micro-batch is added to the parameters', its loss to the optimizer's total.
  void forward_backward(const data::Batch& batch, nn::Watch* watch);
  // The rest of an optimizer step, in the order of docs/numerics.md: norm and found_inf, scales, AdamW, FP8 weights.
  // `asks_to_stop`: this rank does; stop_asked() then says so to all ranks. `before_update` is called once, when only the work
  // that changes parameters and moments remains to be enqueued. It may wait for whoever still reads them.
  void apply(double learning_rate, std::uint32_t step, bool asks_to_stop = false,
             const std::function<void()>& before_update = {});
  // Begins a step of so many micro-batches on this rank; on one rank the number does not matter.
  void zero_gradients(std::int64_t micro_batches = 1);

  // Sets the scales of delayed scaling, which must be new, before the first step (docs/numerics.md, "Calibration"): those of
  // weights from the weights, the others from this rank's `micro_batches` of next(), which the ranks run together. On an engine
  // that does not train only forward, which leaves the scales of gradients as they are. Changes nothing else that outlives the
  // start of a step.
  void calibrate(std::int64_t micro_batches, const std::function<data::Batch()>& next);

  // Shows the FP8 weights that ranks hold parts of, whole and in BF16, as they are cast, one at a time: the first micro-batch of
  // a watched step shows everything else. All ranks call together.
  void observe_weights(nn::Watch& watch);

  // Between steps each rank knows the amax of its own part of a weight; this makes scales and histories those of all ranks, as a
  // checkpoint holds them. Waits.
  void settle_scales();
  // All of a global parameter's primary, in host memory that stays as it is until the next call; empty on ranks other than the
  // first. All ranks call together.
  Tensor whole(const parallel::Parameter& p);

  // Before an engine on other ranks' groups goes while they go on: all ranks call together. Nothing runs on it afterwards.
  void close();

  // After the stream was synchronised and before results are kept: throws Error{peer} if a rank is gone.
  void check_ranks() const { groups_.check(); }

  // Whether any rank asked to stop in the last apply(). Waits.
  bool stop_asked() { return optimizer_->stop_asked(*stream_); }

  // Every pass has the one shape that the memory was measured for: a whole micro-batch.
  // {sum of losses, tokens} of all ranks, each data coordinate with at most a micro-batch of whole rows of its own; records
  // nothing. Targets that are kernels::kIgnoredTarget count nothing. `document_starts` as in data::Batch; empty: every row is one
  // document.
  std::array<double, 2> evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                 std::span<const std::int32_t> document_starts = {});
  // Of a mixture of experts: the router's two losses, without their coefficients, summed over the tokens and the layers of the
  // last step, of all ranks after apply(), or of the last evaluate() on this rank (on the first of the context axis). Waits.
  struct RouterLosses {
    double balance = 0, z = 0;
  };
  RouterLosses router_losses_of_step() { return read_router_losses(0); }
  RouterLosses router_losses_of_evaluation() { return read_router_losses(2); }
  // logits [tokens, V] in device memory until the next call; of whole rows, or of the beginning of one. Refused where the
  // context or the tensor axis has several ranks.
  Tensor logits(std::span<const std::int32_t> tokens);

  // On a GPU: gives every product of a step its fastest algorithm, the one of `tuning`'s file where it is known. Runs a
  // micro-batch that leaves no trace. Before the first step. Elsewhere nothing, nor in deterministic mode: what was fastest today
  // need not be so when the run is resumed, so products then keep the library's own choice, a function of shape, GPU and version.
  void tune(const kernels::GemmTuning& tuning);

  // After parameters or scales were loaded.
  void refresh() { model_->units().refresh(*scratch_); }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  models::Decoder& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const Arena& stash() const { return *stash_; }
  const Arena& scratch() const { return *scratch_; }
  const EngineOptions& options() const { return options_; }

 private:
  friend MemoryPlan measure(const EngineOptions& options, DeviceKind device);
  struct Capacity {
    std::size_t stash = 0, scratch = 0;
  };
  Engine(const EngineOptions& options, std::unique_ptr<Device> own, Device* device, Capacity capacity,
         const parallel::Groups* groups);
  static Capacity capacity_of(const EngineOptions& options, DeviceKind device);
  void dry_run();
  RouterLosses read_router_losses(int first);
  void reduce_amaxes();
  double* router_total(int first) {
    return options_.model.experts > 0 ? static_cast<double*>(router_total_.data()) + first : nullptr;
  }
  nn::Scope scope(nn::Watch* watch);
  std::vector<std::int32_t> first_keys_of(std::span<const std::int32_t> document_starts, std::size_t tokens) const;
  // `first_keys`: of whole sequences, as tokens; empty without a document mask.
  models::Batch upload(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                       std::span<const std::int32_t> first_keys);

  EngineOptions options_;
  std::unique_ptr<Device> own_device_;
  Device* device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<models::Decoder> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Arena> stash_, scratch_;
  parallel::Groups silent_;  // stand for the groups that were not given
  const parallel::Groups& groups_;
  Buffer batch_, evaluation_total_, logits_;
  Buffer router_total_;  // [4] F64: of the step, of the last evaluation
  std::unique_ptr<parallel::Wholes> wholes_;
};

// Of activations and of parameters' values.
DType compute_dtype(const Recipe& recipe);

}  // namespace octet::train
