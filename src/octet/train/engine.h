// Everything with which one rank computes: device, model, optimizer and the memory of a step. The meta device measures this
// memory first.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/comm/group.h"
#include "octet/data/loader.h"
#include "octet/kernels/gemm/gemm_tuning.h"
#include "octet/models/decoder/decoder.h"
#include "octet/optim/optimizer.h"
#include "octet/parallel/groups.h"
#include "octet/train/assembler.h"
#include "octet/train/entries.h"
#include "octet/train/replica_check.h"

namespace octet::train {

struct EngineOptions {
  models::DecoderConfig model;
  models::Adapters adapters = {};
  Recipe recipe;
  bool calibrates = false;  // calibrate() will be called
  // Without storage.training there is only evaluate() and logits(). The recipe sets storage.compute, and in F64 all dtypes.
  parallel::Storage storage = {};
  std::int64_t seq_len = 0;
  std::int64_t micro_batch_size = 1;
  nn::Checkpointing checkpointing = nn::Checkpointing::none;
  int full_blocks = std::numeric_limits<int>::max();  // with Checkpointing::full: the blocks from here on are selective
  bool deterministic = false;  // the same bits every time on a GPU, too
  optim::OptimizerOptions optimizer;
  nn::Watch* watch = nullptr;    // will watch some of the steps; the plan holds its memory
  parallel::Layout layout = {};  // of the mesh of all ranks; this is `rank`
  int rank = 0;
  bool document_mask = false;  // no token sees another document, and positions begin anew; on CUDA not with `deterministic`
  bool whole_logits = false;   // room for the logits of a micro-batch (probe, generate)
  bool fingerprints = false;   // fingerprint() will be called; GEMMs on a GPU then keep the library's choice of algorithms

  // Floating-point operations of a training step per token, without recompute.
  double flops_per_token() const { return model.train_flops_per_token(seq_len, adapters ? 4 : 6); }
};

// Bytes by category: to the byte what an Engine with these options takes from its device.
struct MemoryPlan {
  std::array<std::size_t, kMemoryCategories> bytes{};
  std::size_t snapshot = 0;   // host memory for what this rank adds to a checkpoint
  std::size_t held = 0;       // what this rank holds of the state that checkpoints keep: the bytes of a snapshot of its own
  std::size_t total() const;  // of the device: without memory of the host
  std::size_t host() const { return bytes[static_cast<std::size_t>(MemoryCategory::host)]; }
  Work step;  // of one micro-batch on each lane, forward and backward, and one optimizer step
};

MemoryPlan measure(const EngineOptions& options, DeviceKind device);

class Engine {
 public:
  // Makes an engine of one rank, or on the meta device. Takes all memory now. Parameters are zero: initialise or load them, then
  // call refresh().
  Engine(const EngineOptions& options, DeviceKind device);
  // The same on a device and with this rank's groups on the mesh. Both must outlive the engine.
  Engine(const EngineOptions& options, Device& device, const parallel::Groups& groups);

  // Adds the gradient of one micro-batch to the parameters' gradients, and its loss to the optimizer's total. All ranks of a
  // context and tensor group pass the same whole sequences, and each takes its part. With two lanes, the second call of a pair
  // computes both.
  void forward_backward(const data::Batch& batch, nn::Watch* watch);
  // Does the rest of an optimizer step, in the order of docs/numerics.md: norm and found_inf, scales, AdamW, FP8 weights.
  // `asks` are this rank's requests, which requests() then returns on all ranks. `before_update` is called once, when only the
  // work that changes parameters and moments remains to be enqueued. It may wait for readers of the old values.
  void apply(double learning_rate, std::uint32_t step, optim::Requests asks = {},
             const std::function<void()>& before_update = {});
  // Sets the number of the step, from 1 on, to which the next micro-batches belong. Only dropout depends on it, which drops
  // other elements in each step.
  void set_step(std::uint32_t step) { step_ = step; }
  // Begins a step of `micro_batches` micro-batches on this rank. With one rank the number does not matter. If `reduces` is
  // false, the step ends without apply(), and nobody reads its gradients.
  void begin_step(std::int64_t micro_batches = 1, bool reduces = true);

  // Sets new scales of delayed scaling before the first step (docs/numerics.md, "Calibration"). The scales of weights come from
  // the weights, the others from `micro_batches` results of next() on this rank, which all ranks run together. An engine that
  // does not train runs only forward, which leaves the scales of gradients unchanged. Changes nothing else that outlives the
  // start of a step.
  void calibrate(std::int64_t micro_batches, const std::function<data::Batch()>& next);

  // Shows `watch` the FP8 weights that are sharded over ranks, one at a time, whole and in BF16, as they are cast. The first
  // micro-batch of a watched step shows everything else. All ranks call it together.
  void observe_weights(nn::Watch& watch);

  // Prepares the state for a checkpoint. Reduces the amaxes over all ranks, because between steps each rank knows only the amax
  // of its own shard of a weight, and waits until offloaded states are in host memory. Waits if there are several ranks.
  void settle();
  // Returns all of a global parameter's primary in host memory. It is valid until the next call, and empty on ranks other than
  // the first. All ranks call it together.
  Tensor whole(const parallel::Parameter& p);

  // Compares this rank's state with ranks that must hold the same state (replica_check.h). All ranks call it together, between
  // steps. Waits.
  std::optional<Disagreement> compare_replicas();

  // Runs forward and backward of a micro-batch without lasting effect. Returns sums of what it computes
  // (models/decoder/fingerprint.h). Ranks that differ only in their data coordinate get equal sums from equal data. On a GPU,
  // the sums leave out the gradients unless options.deterministic is set. All ranks call it together, between steps. Waits.
  std::vector<std::uint64_t> fingerprint(const data::Batch& batch);
  const std::vector<std::string>& names_in_fingerprint() const { return fingerprint_->names(); }

  // All ranks must call it together before they destroy an engine whose groups live on. The engine must not be used afterwards.
  void close();

  // Returns the mean of a number over all ranks, which call it together. Waits.
  double mean_over_ranks(double value);
  // Returns a number of each rank, on all ranks, which call it together. Waits.
  std::vector<double> of_all_ranks(double value);

  // Throws Error{peer} if a rank is lost. Call it after the stream was synchronised and before results are kept.
  void check_ranks() const { groups_.check(); }

  // Returns the requests of all ranks in the last apply(), combined. Waits.
  optim::Requests requests() { return optimizer_->requests(*stream_); }

  // Returns {sum of losses, tokens} of all ranks; each data coordinate passes its own whole rows, at most a micro-batch of
  // them. Every pass computes a whole micro-batch, the one shape for which the memory was measured. Records nothing. A target
  // equal to kernels::kIgnoredTarget does not count. `document_starts` is as in data::Batch; if it is empty, every row is one
  // document.
  std::array<double, 2> evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                 std::span<const std::int32_t> document_starts = {});
  // The two losses of the router of a mixture of experts, without their coefficients, summed over tokens and layers. They are
  // those of the last step, of all ranks, after apply(); or of the last evaluate() on this rank, on the first rank of the
  // context axis. An evaluation multiplies the losses of a sequence by the share of its tokens that have a target. Waits.
  struct RouterLosses {
    double balance = 0, z = 0;
  };
  enum class Routed : std::uint8_t { step, evaluation };
  RouterLosses router_losses(Routed what);
  // Returns how often each expert of each mixture was chosen in the last step, by all ranks, after apply(): E numbers for the
  // first mixture, then those of the second, and so on. Waits.
  std::vector<double> expert_loads_of_step();
  // Returns logits [tokens, V] in device memory, valid until the next call. `tokens` are whole rows or the beginning of one
  // row. Throws if the context or the tensor axis has several ranks.
  Tensor logits(std::span<const std::int32_t> tokens);

  // Returns the scope of a calibration pass that begins in `scope`.
  nn::Scope for_calibration(nn::Scope scope) const;
  // Runs micro-batches without lasting effect, including those of calibration and for options().watch if this engine uses them.
  // Each pipeline stage runs them alone, without messages. Waits.
  void rehearse();

  // On a GPU, gives every GEMM of a step its fastest algorithm, or the one stored in `tuning`'s file. Routers are an exception
  // where several ranks route the same tokens. Rehearses first. Call it before the first step. Does nothing on other devices
  // and in deterministic mode: the fastest algorithm may be another one when the run is resumed, so GEMMs then keep the
  // library's choice, which depends only on shape, GPU and version. Also does nothing with options.fingerprints, because ranks
  // may find different algorithms fastest.
  void tune(const kernels::GemmTuning& tuning);

  // Overwrites all parameters with random values, and refreshes.
  void initialise(std::uint64_t seed);
  // Calls write(), which must overwrite the primary of a parameter (ParameterStore::fill).
  void fill(parallel::Parameter& p, const std::function<void()>& write) {
    model_->parameters().fill(*stream_, scratch(), p, write);
  }
  // Call it after loading parameters or scales.
  void refresh() { model_->units().refresh(scratch()); }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  models::Decoder& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  // Returns all state that checkpoints keep, as this rank holds it (entries.h), without the optimizer's state if the engine
  // does not train.
  std::vector<checkpoint::Entry> entries() const {
    return read_entries(model_->parameters(), model_->scales(), optimizer_.get());
  }
  const Arena& stash() const { return *stashes_.front(); }
  Arena& scratch(std::size_t lane = 0) const { return *scratches_[lane]; }
  const EngineOptions& options() const { return options_; }

 private:
  friend MemoryPlan measure(const EngineOptions& options, DeviceKind device);
  struct Capacity {
    std::size_t stash = 0, backward = 0, scratch = 0;
  };
  Engine(const EngineOptions& options, std::unique_ptr<Device> own, Device* device, const parallel::Groups* groups);
  void check_options(bool has_groups) const;
  void make_model();
  // Refuses interleaved stages with experts whose products could make the stages wait for ever.
  void check_experts() const;
  void take_memory(const Capacity& capacity);
  void start_pipeline(const Capacity& capacity);
  void share_memory();
  bool loads_before_messages() const;
  std::int64_t tokens_of_micro_batch() const;  // on this rank, before the tensor axis divides them
  std::size_t bytes_of_batch() const;
  static Capacity capacity_of(const EngineOptions& options, DeviceKind device);
  Capacity used() const;
  void dry_run();
  std::int64_t router_numbers() const { return 2 + options_.model.mixtures() * options_.model.experts; }
  // Null without experts.
  double* router_total(Routed what) {
    if (options_.model.experts == 0) return nullptr;
    return static_cast<double*>(router_total_.data()) + (what == Routed::step ? 0 : router_numbers());
  }
  double* zeroed_router_total(Routed what);
  void read(const double* from, std::span<double> numbers);
  // Adds up the numbers of all ranks in place. Waits.
  void add_over_ranks(std::span<double> numbers);
  void all_reduce(Stream& params, const std::vector<comm::Group*>& groups, double* numbers, std::int64_t count);
  void reduce_amaxes();
  nn::Scope scope(nn::Watch* watch, std::size_t lane = 0);
  // The lane of the next micro-batch.
  std::size_t next_lane() { return static_cast<std::size_t>(model_->begun() % options_.layout.lanes); }
  std::vector<std::int32_t> first_keys_of(std::span<const std::int32_t> document_starts, std::size_t tokens) const;
  // Whether training drops inputs of adapters.
  bool drops() const { return options_.storage.training && options_.adapters.dropout.rate > 0; }
  // Whether routers have losses, which depend on how many tokens of a sequence have a target.
  bool has_router_losses() const {
    const models::DecoderConfig& model = options_.model;
    return model.experts > 0 && (model.router_balance != 0 || model.router_z != 0);
  }
  // Copies this rank's part of whole sequences to the device. `first_sample` is the number of the first sequence; only training
  // passes it.
  models::Batch upload(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                       std::span<const std::int32_t> document_starts = {}, std::optional<std::int64_t> first_sample = {});

  EngineOptions options_;
  std::unique_ptr<Device> own_device_;
  Device* device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<models::Decoder> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  parallel::InFlight in_flight_;
  std::vector<std::unique_ptr<Arena>> stashes_;    // of each pass between forward and backward
  std::vector<std::unique_ptr<Arena>> scratches_;  // of each lane
  std::unique_ptr<Arena> backward_;                // of a pipeline stage: the stash of the backward pass under way
  std::unique_ptr<parallel::Boundary> boundary_;
  parallel::Groups silent_;  // used instead of groups that were not given
  const parallel::Groups& groups_;
  // evaluation_total_: [2] F64, or if the engine trains as many as there are ranks, but at least 2
  Buffer batch_, evaluation_total_, logits_;
  Buffer router_total_;  // [2, router_numbers()] F64
  std::unique_ptr<Assembler> assembler_;
  std::optional<ReplicaCheck> replica_check_;  // of an engine that trains
  std::optional<models::Fingerprint> fingerprint_;  // with options.fingerprints
  std::uint32_t step_ = 1;
};

// Returns the dtype of activations and of parameters' values.
DType compute_dtype(const Recipe& recipe);

}  // namespace octet::train
