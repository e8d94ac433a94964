// How an engine is made, gets ready for its first step, and ends.
#include <algorithm>
#include <utility>
#include <vector>

#include "octet/kernels/grouped_gemm/grouped_gemm.h"
#include "octet/recipes/registry.h"
#include "octet/train/engine.h"

namespace octet::train {

Engine::Engine(const EngineOptions& options, DeviceKind device) : Engine(options, make_device(device), nullptr, nullptr) {}

Engine::Engine(const EngineOptions& options, Device& device, const parallel::Groups& groups)
    : Engine(options, nullptr, &device, &groups) {}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Device> own, Device* device, const parallel::Groups* groups)
    : options_(options),
      own_device_(std::move(own)),
      device_(own_device_ ? own_device_.get() : device),
      stream_(device_->make_stream()),
      silent_(parallel::silent_groups(options_.layout.mesh, options_.rank)),
      groups_(groups ? *groups : silent_) {
  const Capacity capacity = device_->kind() == DeviceKind::meta ? Capacity{} : capacity_of(options, device_->kind());
  if (!options_.storage.training) options_.layout.lanes = 1;
  check_options(groups != nullptr);
  make_model();
  check_experts();
  take_memory(capacity);
  share_memory();
  if (loads_before_messages()) rehearse();
}

void Engine::check_options(bool has_groups) const {
  require(has_groups || options_.layout.mesh.ranks() == 1 || device_->kind() == DeviceKind::meta, "an engine of ",
          options_.layout.mesh.ranks(), " ranks has no groups");
  require(groups_.replicas->size() == silent_.replicas->size() && groups_.shards->size() == silent_.shards->size() &&
              groups_.context->size() == silent_.context->size() && groups_.tensor->size() == silent_.tensor->size() &&
              groups_.expert->size() == silent_.expert->size() && groups_.stages->size() == silent_.stages->size(),
          "groups of another mesh");
  require(options_.layout.lanes == 1 || (groups_.expert->size() > 1 && groups_.stages->size() == 1), options_.layout.lanes,
          " lanes of micro-batches");
  demand(!options_.document_mask || !options_.deterministic || stream_->target() != DeviceKind::cuda, ExitCode::config,
         "data.document_mask = true, or data.packing = \"documents\", with run.deterministic = true: on CUDA attention that "
         "keeps documents apart does not give the "
         "same bits every time; run.device = \"cpu\" does, or one of the two must be false");
  demand(options_.recipe.attention == AttentionPrecision::bf16 || groups_.context->size() == 1, ExitCode::config,
         "precision.attention = \"", name_of(options_.recipe.attention), "\" with parallel.context = ", groups_.context->size(),
         ": ranks that share sequences exchange keys in BF16; use precision.attention = \"bf16\", or parallel.tensor instead of "
         "parallel.context");
  const std::int64_t tokens = tokens_of_micro_batch();
  const std::int64_t multiple = recipes::token_multiple(options_.recipe);
  demand(stream_->target() != DeviceKind::cuda || tokens % multiple == 0, ExitCode::config, options_.recipe.name,
         " on a GPU: ", options_.micro_batch_size, " sequences of ", options_.seq_len, " tokens are ", tokens,
         " on each rank: must be a multiple of ", multiple);
}

void Engine::check_experts() const {
  const models::DecoderConfig& model = options_.model;
  if (options_.layout.mesh.stages().chunks == 1 || stream_->target() != DeviceKind::cuda || model.experts == 0) return;
  const std::vector<nn::LinearWeight*> linears = model_->linears();
  const bool adapted = std::any_of(linears.begin(), linears.end(), [](const nn::LinearWeight* linear) {
    return linear->adapter() != nullptr && linear->weight().spec.expert;
  });
  std::vector<std::int64_t> dims = {model.dim, model.ffn_of_expert() / groups_.tensor->size()};
  if (adapted) dims.push_back(options_.adapters.rank);
  demand(kernels::in_one_launch(*stream_, options_.recipe, dims), ExitCode::config,
         "parallel.pipeline_schedule = \"interleaved\" with experts of ", model.dim, " x ", model.ffn_of_expert(),
         adapted ? concat(" with adapters of rank ", options_.adapters.rank) : "", " in ", options_.recipe.name,
         " on this kind of GPU: each expert has a product of its own, whose shape is new in every step, "
         "and loading its kernel would let stages wait for each other for ever; use \"1f1b\"",
         adapted ? ", or a rank that is a multiple of 16" : "");
}

void Engine::make_model() {
  model_ = std::make_unique<models::Decoder>(options_.model, options_.recipe,
                                             parallel::TensorPlace{groups_.tensor->rank(), groups_.tensor->size()},
                                             parallel::ExpertPlace{groups_.expert->rank(), groups_.expert->size()},
                                             options_.layout.mesh.stages(), groups_.stages->rank(), options_.adapters);
  model_->keep_inputs_of(options_.full_blocks);
  parallel::Storage& storage = options_.storage;
  storage.compute = compute_dtype(options_.recipe);
  if (storage.compute == DType::f64) storage.grad = storage.moments = options_.layout.reduce = DType::f64;
  model_->materialise(*stream_, storage, options_.seq_len, groups_, options_.layout);
  if (storage.training) {
    optimizer_ =
        std::make_unique<optim::Optimizer>(*device_, model_->parameters(), options_.optimizer, model_->units().update_work());
    replica_check_.emplace(*device_, options_.layout.mesh, options_.rank, groups_, model_->parameters(), model_->scales(),
                           optimizer_->updates());
    if (options_.fingerprints) {
      const bool repeats_gradients = stream_->target() != DeviceKind::cuda || options_.deterministic;
      fingerprint_.emplace(*device_, model_->shape(), model_->parameters(), compute_dtype(options_.recipe),
                           Shape{tokens_of_micro_batch() / groups_.tensor->size(), options_.model.dim},
                           repeats_gradients ? models::Fingerprint::Covers::gradients_too : models::Fingerprint::Covers::outputs);
    }
  }
}

std::int64_t Engine::tokens_of_micro_batch() const {
  return options_.micro_batch_size * options_.seq_len / groups_.context->size();
}

std::size_t Engine::bytes_of_batch() const {
  const std::size_t numbers = 2u + (options_.document_mask ? 2u : 0u) + (drops() ? 1u : 0u);  // for each token
  const std::int64_t sequences = has_router_losses() ? options_.micro_batch_size : 0;
  return numbers * bytes_of(DType::i32, {tokens_of_micro_batch()}) + bytes_of(DType::i32, {sequences});
}

void Engine::take_memory(const Capacity& capacity) {
  // The most passes that a stage ever has under way: more micro-batches than these do not change it.
  const parallel::Stages stages = options_.layout.mesh.stages();
  in_flight_ = parallel::in_flight(parallel::visits_of(stages, groups_.stages->rank(), 4 * stages.count, options_.layout.lanes));
  batch_ = device_->allocate(static_cast<std::size_t>(in_flight_.micro_batches) * bytes_of_batch(), MemoryCategory::workspace);
  const int numbers = std::max(2, options_.storage.training ? options_.layout.mesh.ranks() : 0);
  evaluation_total_ = device_->allocate(static_cast<std::size_t>(numbers) * sizeof(double), MemoryCategory::state);
  if (options_.model.experts > 0) {
    router_total_ = device_->allocate(2 * static_cast<std::size_t>(router_numbers()) * sizeof(double), MemoryCategory::state);
  }
  if (options_.whole_logits) {
    logits_ = device_->allocate(bytes_of(compute_dtype(options_.recipe), {tokens_of_micro_batch(), options_.model.vocab}),
                                MemoryCategory::workspace);
  }
  assembler_ = std::make_unique<Assembler>(*stream_, model_->parameters(), model_->units(), groups_, options_.rank == 0);
  for (int i = 0; i < in_flight_.passes; ++i)
    stashes_.push_back(std::make_unique<Arena>(*device_, MemoryCategory::activations, capacity.stash));
  for (int lane = 0; lane < options_.layout.lanes; ++lane)
    scratches_.push_back(std::make_unique<Arena>(*device_, MemoryCategory::workspace, capacity.scratch));
  if (stages.count > 1) start_pipeline(capacity);
}

void Engine::start_pipeline(const Capacity& capacity) {
  backward_ = std::make_unique<Arena>(*device_, MemoryCategory::activations, capacity.backward);
  boundary_ = std::make_unique<parallel::Boundary>(*device_, groups_, model_->units().streams(), scratch(),
                                                   compute_dtype(options_.recipe),
                                                   Shape{tokens_of_micro_batch() / groups_.tensor->size(), options_.model.dim});
  models::Decoder::FlightMemory memory{.backward = backward_.get(), .boundary = boundary_.get()};
  for (const auto& stash : stashes_) memory.stashes.push_back(stash.get());
  model_->use(std::move(memory));
}

void Engine::share_memory() {
  for (comm::Group* group : groups_.all_shards()) {
    const Buffer& parts = model_->parameters().gathered_shards(group);
    if (parts.bytes() > 0) group->share(model_->units().params_stream(), scratch(), parts.data(), parts.bytes());
  }
  // K and V, where they lie in one place on all ranks. Rows of experts are as many as tokens have chosen them, and what a rank
  // keeps of one layer moves what it keeps of the next, unless that is computed again.
  const bool keeps_inputs = options_.checkpointing == nn::Checkpointing::full && options_.full_blocks >= options_.model.layers;
  const bool alike = options_.model.experts == 0 || keeps_inputs;
  if (options_.storage.training && groups_.context->size() > 1 && alike && stashes_.size() == 1 && !backward_)
    groups_.context->share(model_->units().params_stream(), scratch(), stashes_.front()->memory(), stashes_.front()->capacity());
  // Temporaries, where they lie in one place on all ranks. Only one lane can share them.
  if (groups_.tensor->size() > 1 && options_.model.experts == 0 && scratches_.size() == 1)
    groups_.tensor->share(model_->units().params_stream(), scratch(), scratch().memory(), scratch().capacity());
}

void Engine::close() {
  if (boundary_) boundary_->close();
  for (comm::Group* group : groups_.all_shards()) group->unshare(model_->units().params_stream());
  groups_.context->unshare(model_->units().params_stream());
  groups_.tensor->unshare(model_->units().streams()[parallel::StreamId::tensor]);
}

// CUDA loads a kernel when it is first called, and waits until its GPU has nothing else to do. A stage of an interleaved pipeline
// then waits for messages whose other end waits for this stage (tests/parallel/schedule_test.cpp).
bool Engine::loads_before_messages() const {
  return options_.layout.mesh.stages().chunks > 1 && device_->kind() == DeviceKind::cuda;
}

void Engine::rehearse() {
  if (boundary_) boundary_->mute(true);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len));
  // An interleaved schedule takes a multiple of this number. The first micro-batch begins gradients, and the others add to them.
  const int micro_batches = options_.layout.mesh.stages().count;
  const auto run = [&](const nn::Scope& of_pass, std::optional<std::int64_t> first_sample) {
    begin_step(micro_batches);
    for (int i = 0; i < micro_batches; ++i)
      model_->forward_backward(of_pass, upload(ids, ids, {}, first_sample), optimizer_->loss_total());
  };
  if (options_.storage.training) {
    const nn::Scope traceless = nn::without_record(scope(nullptr));
    run(traceless, 0);
    if (options_.calibrates) run(for_calibration(traceless), {});
    if (options_.watch) {
      options_.watch->rehearse(true);
      run(nn::without_record(scope(options_.watch)), 0);
      observe_weights(*options_.watch);
    }
    model_->units().exchange([](Stream&) {});  // after reductions, which may write the gradients that begin_step() zeroes
    begin_step();
  } else {
    evaluate(ids, ids);
  }
  if (boundary_) boundary_->mute(false);
  stream_->synchronize();
  if (options_.watch) options_.watch->rehearse(false);
}

void Engine::tune(const kernels::GemmTuning& tuning) {
  if (device_->kind() != DeviceKind::cuda || options_.deterministic || fingerprint_) return;
  rehearse();
  // Both arenas are empty between steps, so tuning borrows the larger one.
  Arena& stash = *stashes_.front();
  kernels::tune_gemms(*stream_, stash.capacity() > scratch().capacity() ? stash : scratch(), tuning);
  if (loads_before_messages()) rehearse();  // with the algorithms that were chosen
}

}  // namespace octet::train
