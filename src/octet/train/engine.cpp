#include "octet/train/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/grouped_gemm/grouped_gemm.h"
#include "octet/parallel/context.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/rank_page.h"

namespace octet::train {

DType compute_dtype(const Recipe& recipe) {
  switch (recipe.compute) {
    case Compute::fp64:
      return DType::f64;
    case Compute::fp32:
      return DType::f32;
    default:
      return DType::bf16;
  }
}

std::size_t MemoryPlan::total() const {
  return std::accumulate(bytes.begin(), bytes.begin() + kDeviceCategories, std::size_t{0});
}

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
  require(groups || options_.layout.mesh.ranks() == 1 || device_->kind() == DeviceKind::meta, "an engine of ",
          options_.layout.mesh.ranks(), " ranks has no groups");
  require(groups_.replicas->size() == silent_.replicas->size() && groups_.shards->size() == silent_.shards->size() &&
              groups_.context->size() == silent_.context->size() && groups_.tensor->size() == silent_.tensor->size() &&
              groups_.expert->size() == silent_.expert->size() && groups_.stages->size() == silent_.stages->size(),
          "groups of another mesh");
  if (!options_.storage.training) options_.layout.lanes = 1;
  require(options_.layout.lanes == 1 || (groups_.expert->size() > 1 && groups_.stages->size() == 1), options_.layout.lanes,
          " lanes of micro-batches");
  demand(!options_.document_mask || !options_.deterministic || stream_->target() != DeviceKind::cuda, ExitCode::config,
         "data.document_mask = true, or data.packing = \"documents\", with run.deterministic = true: on CUDA attention that "
         "keeps documents apart does not give the "
         "same bits every time; run.device = \"cpu\" does, or one of the two must be false");
  const models::DecoderConfig& model = options_.model;
  demand(options_.layout.mesh.stages().chunks == 1 || stream_->target() != DeviceKind::cuda || model.experts == 0 ||
             kernels::in_one_launch(*stream_, options_.recipe, {model.dim, model.ffn_of_expert() / groups_.tensor->size()}),
         ExitCode::config, "parallel.pipeline_schedule = \"interleaved\" with experts of ", model.dim, " x ",
         model.ffn_of_expert(), " in ", options_.recipe.name,
         " on this kind of GPU: each expert has a product of its own, whose shape is new in every step, "
         "and loading its kernel would let stages wait for each other for ever; use \"1f1b\"");
  demand(options_.recipe.attention == AttentionPrecision::bf16 || groups_.context->size() == 1, ExitCode::config,
         "precision.attention = \"", name_of(options_.recipe.attention), "\" with parallel.context = ", groups_.context->size(),
         ": ranks that share sequences exchange keys in BF16; use precision.attention = \"bf16\", or parallel.tensor instead of "
         "parallel.context");
  const std::int64_t tokens = options_.micro_batch_size * options_.seq_len / groups_.context->size();
  const std::int64_t multiple = recipes::token_multiple(options_.recipe);
  demand(stream_->target() != DeviceKind::cuda || tokens % multiple == 0, ExitCode::config, options_.recipe.name,
         " on a GPU: ", options_.micro_batch_size, " sequences of ", options_.seq_len, " tokens are ", tokens,
         " on each rank: must be a multiple of ", multiple);
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
                           Shape{tokens / groups_.tensor->size(), options_.model.dim},
                           repeats_gradients ? models::Fingerprint::Covers::gradients_too : models::Fingerprint::Covers::outputs);
    }
  }
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
    logits_ =
        device_->allocate(bytes_of(compute_dtype(options_.recipe), {tokens, options_.model.vocab}), MemoryCategory::workspace);
  }
  assembler_ = std::make_unique<Assembler>(*stream_, model_->parameters(), model_->units(), groups_, options_.rank == 0);
  for (int i = 0; i < in_flight_.passes; ++i)
    stashes_.push_back(std::make_unique<Arena>(*device_, MemoryCategory::activations, capacity.stash));
  for (int lane = 0; lane < options_.layout.lanes; ++lane)
    scratches_.push_back(std::make_unique<Arena>(*device_, MemoryCategory::workspace, capacity.scratch));
  if (stages.count > 1) start_pipeline(capacity);
  const std::vector<comm::Group*> groups_of_shards = groups_.all_shards();
  for (std::size_t i = 0; i < groups_of_shards.size(); ++i) {
    const Buffer& parts = model_->parameters().gathered_shards(i);
    if (parts.bytes() > 0) groups_of_shards[i]->share(model_->units().params_stream(), scratch(), parts.data(), parts.bytes());
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
  if (loads_before_messages()) rehearse();
}

// CUDA loads a kernel when it is first called, and waits until its GPU has nothing else to do. A stage of an interleaved pipeline
// then waits for messages whose other end waits for this stage (tests/parallel/schedule_test.cpp).
bool Engine::loads_before_messages() const {
  return options_.layout.mesh.stages().chunks > 1 && device_->kind() == DeviceKind::cuda;
}

void Engine::start_pipeline(const Capacity& capacity) {
  const std::int64_t tokens = options_.micro_batch_size * options_.seq_len / groups_.context->size() / groups_.tensor->size();
  backward_ = std::make_unique<Arena>(*device_, MemoryCategory::activations, capacity.backward);
  boundary_ = std::make_unique<parallel::Boundary>(*device_, groups_, model_->units().executor(), scratch(),
                                                   compute_dtype(options_.recipe), Shape{tokens, options_.model.dim});
  models::Decoder::FlightMemory memory{.backward = backward_.get(), .boundary = boundary_.get()};
  for (const auto& stash : stashes_) memory.stashes.push_back(stash.get());
  model_->use(std::move(memory));
}

std::size_t Engine::bytes_of_batch() const {
  const std::int64_t tokens = options_.micro_batch_size * options_.seq_len / groups_.context->size();
  const std::size_t numbers = 2u + (options_.document_mask ? 2u : 0u) + (drops() ? 1u : 0u);  // of each token
  const std::int64_t sequences = has_router_losses() ? options_.micro_batch_size : 0;
  return numbers * bytes_of(DType::i32, {tokens}) + bytes_of(DType::i32, {sequences});
}

// Returns the capacities that the arenas need, after a dry run.
Engine::Capacity Engine::used() const {
  Capacity used{.backward = backward_ ? backward_->high_water() : 0};
  for (const auto& stash : stashes_) used.stash = std::max(used.stash, stash->high_water());
  for (const auto& scratch : scratches_) used.scratch = std::max(used.scratch, scratch->high_water());
  return used;
}

// Does everything that a run does once, on the meta device.
void Engine::dry_run() {
  const auto tokens = static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len);
  const std::vector<std::int32_t> ids(tokens);
  for (parallel::Parameter& p : model_->parameters().parameters()) fill(p, [] {});
  refresh();
  evaluate(ids, ids);
  if (options_.whole_logits) logits(ids);
  const data::Batch batch{.first_sample = 0, .tokens = ids, .targets = ids};
  if (options_.calibrates) calibrate(1, [&] { return batch; });
  if (options_.storage.training) {
    for (const parallel::Parameter& p : model_->parameters().parameters()) {
      if (p.spec.saved) whole(p);
    }
    compare_replicas();
    begin_step(options_.layout.lanes, false);  // without a watch, codes are gathered, which need other memory than values
    for (int lane = 0; lane < options_.layout.lanes; ++lane) forward_backward(batch, nullptr);
  }
  stream_->reset_work();
  if (!options_.storage.training) return;
  begin_step(options_.layout.lanes);
  for (int lane = 0; lane < options_.layout.lanes; ++lane) forward_backward(batch, lane == 0 ? options_.watch : nullptr);
  if (options_.watch) observe_weights(*options_.watch);
  apply(0.0, 1);
  settle();
}

Engine::Capacity Engine::capacity_of(const EngineOptions& options, DeviceKind device) {
  Engine meta(options, make_meta_device(device), nullptr, nullptr);
  meta.dry_run();
  return meta.used();
}

MemoryPlan measure(const EngineOptions& options, DeviceKind device) {
  Engine meta(options, make_meta_device(device), nullptr, nullptr);
  meta.dry_run();
  MemoryPlan plan;
  plan.bytes = meta.device().memory().bytes;
  const auto used = meta.used();
  plan.bytes[static_cast<std::size_t>(MemoryCategory::activations)] += meta.stashes_.size() * used.stash + used.backward;
  plan.bytes[static_cast<std::size_t>(MemoryCategory::workspace)] += meta.scratches_.size() * used.scratch;
  plan.step = meta.stream().work();
  if (!options.storage.training) return plan;
  for (const checkpoint::Entry& entry :
       written_entries(meta.model().parameters(), meta.model().scales(), meta.optimizer(), meta.groups_))
    plan.snapshot += entry.tensor.bytes();
  for (const checkpoint::Entry& entry : meta.entries()) plan.held += entry.tensor.bytes();
  return plan;
}

// A pipeline stage gives each pass its stash.
nn::Scope Engine::scope(nn::Watch* watch, std::size_t lane) {
  return {.stream = *stream_,
          .stash = *stashes_[lane],
          .scratch = scratch(lane),
          .dtype = compute_dtype(options_.recipe),
          .checkpointing = options_.checkpointing,
          .watch = watch,
          .deterministic = options_.deterministic,
          .context = *groups_.context,
          .tensor = *groups_.tensor,
          .expert = *groups_.expert,
          .step = step_};
}

// Returns, for each token, where in its sequence its document begins.
std::vector<std::int32_t> Engine::first_keys_of(std::span<const std::int32_t> document_starts, std::size_t tokens) const {
  std::vector<std::int32_t> first_keys(tokens, 0);
  const auto length = static_cast<std::size_t>(options_.seq_len);
  for (std::size_t d = 0; d < document_starts.size(); ++d) {
    const auto begin = static_cast<std::size_t>(document_starts[d]);
    const std::size_t end = d + 1 < document_starts.size() ? static_cast<std::size_t>(document_starts[d + 1]) : tokens;
    require(begin <= end && end <= tokens, "document ", d, " has the tokens ", begin, " to ", end, " of ", tokens);
    std::fill(first_keys.begin() + static_cast<std::ptrdiff_t>(begin), first_keys.begin() + static_cast<std::ptrdiff_t>(end),
              static_cast<std::int32_t>(begin % length));
  }
  return first_keys;
}

models::Batch Engine::upload(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                             std::span<const std::int32_t> document_starts, std::optional<std::int64_t> first_sample) {
  const std::int64_t count = options_.micro_batch_size * options_.seq_len;
  require(static_cast<std::int64_t>(tokens.size()) == count && targets.size() == tokens.size(), "a micro-batch of ",
          tokens.size(), " tokens and ", targets.size(), " targets, not ", options_.micro_batch_size, " x ", options_.seq_len);
  models::Batch result{.batch = options_.micro_batch_size, .seq_len = options_.seq_len};
  const auto number = static_cast<std::size_t>(model_->begun() % in_flight_.micro_batches);
  auto* memory = static_cast<std::uint8_t*>(batch_.data()) + number * bytes_of_batch();
  const auto place = [&](std::span<const std::int32_t> whole) {
    const std::vector<std::int32_t> own =
        parallel::context_part(whole, options_.seq_len, groups_.context->rank(), groups_.context->size());
    const Tensor part(memory, DType::i32, {static_cast<std::int64_t>(own.size())});
    stream_->copy_to_device(part.data, own.data(), part.bytes());
    memory += part.bytes();
    return part;
  };
  result.tokens = place(tokens);
  result.targets = place(targets);
  if (has_router_losses()) {
    std::vector<std::int32_t> counted(static_cast<std::size_t>(options_.micro_batch_size));
    for (std::size_t i = 0; i < targets.size(); ++i)
      counted[i / static_cast<std::size_t>(options_.seq_len)] += targets[i] != kernels::kIgnoredTarget;
    if (std::any_of(counted.begin(), counted.end(), [&](std::int32_t tokens) { return tokens < options_.seq_len; })) {
      result.counted = Tensor(memory, DType::i32, {options_.micro_batch_size});
      stream_->copy_to_device(result.counted.data, counted.data(), result.counted.bytes());
    }
    memory += bytes_of(DType::i32, {options_.micro_batch_size});
  }
  if (drops() && first_sample) {
    std::vector<std::int32_t> numbers(tokens.size());
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(*first_sample * options_.seq_len) + i);
    result.token_numbers = place(numbers);
  }
  if (!options_.document_mask) return result;
  const std::vector<std::int32_t> first_keys = first_keys_of(document_starts, tokens.size());
  result.first_keys = place(first_keys);
  std::vector<std::int32_t> positions(first_keys.size());
  for (std::size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(options_.seq_len)) - first_keys[i];
  result.positions = place(positions);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    result.documents += i % options_.seq_len == 0 || first_keys[at] != first_keys[at - 1];
  }
  return result;
}

void Engine::forward_backward(const data::Batch& batch, nn::Watch* watch) {
  nn::Scope training = scope(watch, next_lane());
  training.router_total = router_total(Routed::step);
  model_->forward_backward(training, upload(batch.tokens, batch.targets, batch.document_starts, batch.first_sample),
                           optimizer_->loss_total());
}

std::vector<std::uint64_t> Engine::fingerprint(const data::Batch& batch) {
  model_->begin_step(1, false);
  models::Batch uploaded = upload(batch.tokens, batch.targets, batch.document_starts, batch.first_sample);
  uploaded.fingerprint = &*fingerprint_;
  fingerprint_->begin(*stream_);
  model_->forward_backward(nn::without_record(scope(nullptr)), uploaded, static_cast<double*>(evaluation_total_.data()));
  std::vector<std::uint64_t> sums = fingerprint_->read(*stream_);
  check_ranks();
  return sums;
}

void Engine::initialise(std::uint64_t seed) {
  parallel::ParameterStore& store = model_->parameters();
  for (parallel::Parameter& p : store.parameters()) fill(p, [&] { store.initialise(*stream_, p, seed); });
  refresh();
}

void Engine::initialise_adapters(std::uint64_t seed) {
  parallel::ParameterStore& store = model_->parameters();
  for (const parallel::Parameter& p : store.parameters()) {
    if (!p.spec.frozen) store.initialise(*stream_, p, seed);
  }
  refresh();
}

void Engine::rehearse() {
  if (boundary_) boundary_->mute(true);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len));
  // As many micro-batches as any schedule accepts. All but the first add to gradients.
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
    model_->units().exchange([](Stream&) {});  // behind reductions, which may write the gradients that begin_step() zeroes
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

double* Engine::zeroed_router_total(Routed what) {
  double* const total = router_total(what);
  if (total) stream_->zero(total, static_cast<std::size_t>(router_numbers()) * sizeof(double));
  return total;
}

void Engine::begin_step(std::int64_t micro_batches, bool reduces) {
  optimizer_->reset_sums(*stream_);
  zeroed_router_total(Routed::step);
  model_->begin_step(micro_batches, reduces);
}

void Engine::apply(double learning_rate, std::uint32_t step, optim::Requests asks, const std::function<void()>& before_update) {
  const TraceRange range(*stream_, "optimizer");
  parallel::Units& units = model_->units();
  bool updates = false;
  optimizer_->ask(*stream_, asks);
  units.executor().run(model_->update_tasks(), [&](const parallel::Task& task) {
    switch (task.kind) {
      case parallel::Kind::squares:
        units.sum_over_holders(scratch(), task.units);
        return optimizer_->add_squares(*stream_, scratch(), task.units);
      case parallel::Kind::sums:
        return add_up_ranks(units.executor().stream(task.stream));
      case parallel::Kind::scales:
        optimizer_->prepare(*stream_, {.learning_rate = learning_rate, .step = step});
        return model_->scales().update(*stream_, optimizer_->found_inf());
      case parallel::Kind::update: {
        if (!std::exchange(updates, true)) {
          if (before_update) before_update();
          model_->update_router_biases(*stream_, router_total(Routed::step), optimizer_->found_inf());
        }
        const bool of_piece = task.part >= 0;
        const TraceRange part(*stream_, of_piece ? concat("update states ", task.part)
                                                 : concat("update units ", task.units.begin, " to ", task.units.end - 1));
        return optimizer_->update(*stream_, static_cast<std::size_t>(of_piece ? task.part : task.index));
      }
      default:
        return units.run(scratch(), task);
    }
  });
}

// Adds up what the step counted, and takes the largest of the ranks' amaxes.
void Engine::add_up_ranks(Stream& params) {
  optimizer_->add_up_ranks(scratch(), groups_, model_->units());
  if (double* const total = router_total(Routed::step)) {
    all_reduce(params, groups_.all_of_tokens(), total, router_numbers());
  }
  model_->scales().reduce(params, scratch(), groups_.all_and_of_experts());
}

void Engine::all_reduce(Stream& params, const std::vector<comm::Group*>& groups, double* numbers, std::int64_t count) {
  for (comm::Group* group : groups) group->all_reduce(params, scratch(), {.x = {numbers, DType::f64, {count}}});
}

// Calibration attends in BF16, which keeps more for backward than attention in FP8. It then keeps the inputs of blocks alone,
// which changes no bit, so that it takes no more memory than training.
nn::Scope Engine::for_calibration(nn::Scope scope) const {
  scope.pass = nn::Pass::calibration;
  if (options_.recipe.attention != AttentionPrecision::bf16) scope.checkpointing = nn::Checkpointing::full;
  return scope;
}

void Engine::calibrate(std::int64_t micro_batches, const std::function<data::Batch()>& next) {
  parallel::Units& units = model_->units();
  reduce_amaxes();  // refresh() has recorded those of the weights
  model_->scales().update(*stream_, nullptr);
  refresh();
  units.exchange([&](Stream& params) {  // they are in the histories, and are not to enter them again
    for (const parallel::Parameter& p : model_->parameters().parameters()) {
      if (p.scale_slot.amax) params.zero(p.scale_slot.amax, sizeof(float));
    }
  });
  if (options_.storage.training) begin_step(micro_batches, false);  // the gradients, which nobody reads, stay where they are
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    const nn::Scope calibration = for_calibration(scope(nullptr, options_.storage.training ? next_lane() : 0));
    const data::Batch batch = next();
    const models::Batch uploaded = upload(batch.tokens, batch.targets, batch.document_starts);
    if (options_.storage.training) {
      model_->forward_backward(calibration, uploaded, optimizer_->loss_total());
    } else {
      model_->evaluate(calibration, uploaded, static_cast<double*>(evaluation_total_.data()));
    }
  }
  reduce_amaxes();
  model_->scales().update(*stream_, nullptr);
  if (options_.storage.training) begin_step();
  refresh();
}

void Engine::observe_weights(nn::Watch& watch) {
  parallel::Units& units = model_->units();
  parallel::ScheduleBuilder list(model_->shape(), units.slots(), false);
  for (const auto* linear : model_->linears()) {
    const parallel::Parameter& p = linear->weight();
    if (!linear->is_fp8() || p.shard_count() == 1 || !p.held || p.spec.frozen) continue;
    comm::Group& shards = *p.shards;
    const parallel::Need weights{.unit = p.unit, .use = parallel::Use::forward};
    list.open(weights);
    units.run(scratch(), list.finish());
    {
      const ArenaScope temporaries(scratch());
      const Tensor whole = allocate(scratch(), compute_dtype(options_.recipe), {shards.size() * p.stride});
      const Tensor part = whole.slice_rows(shards.rank() * p.stride, (shards.rank() + 1) * p.stride);
      kernels::cast(*stream_, {.x = p.cast_source(), .y = part.slice_rows(0, p.shard_elements)});
      units.exchange([&](Stream& params) { shards.all_gather(params, scratch(), {.x = part, .y = whole}); });
      watch.operand(scope(&watch), linear->name(), Role::weight, {whole.data, whole.dtype, p.spec.shape}, p.codes);
    }
    list.close(weights);
    units.run(scratch(), list.finish());
  }
}

Tensor Engine::whole(const parallel::Parameter& p) {
  model_->units().wait_for_states(*stream_);
  return assembler_->whole(p, scratch());
}

std::optional<Disagreement> Engine::compare_replicas() {
  model_->units().wait_for_states(*stream_);
  return replica_check_->compare(*stream_, scratch(), model_->units());
}

// Copies numbers to the host, none if there are none on the device. Waits.
void Engine::read(const double* from, std::span<double> numbers) {
  if (from) stream_->copy_to_host(numbers.data(), from, numbers.size_bytes());
  stream_->synchronize();
  check_ranks();
}

Engine::RouterLosses Engine::router_losses(Routed what) {
  std::array<double, 2> total{};
  read(router_total(what), total);
  return {.balance = total[0], .z = total[1]};
}

std::vector<double> Engine::expert_loads_of_step() {
  std::vector<double> loads(static_cast<std::size_t>(options_.model.mixtures() * options_.model.experts));
  read(loads.empty() ? nullptr : router_total(Routed::step) + 2, loads);
  return loads;
}

void Engine::reduce_amaxes() {
  model_->units().exchange([&](Stream& params) { model_->scales().reduce(params, scratch(), groups_.all_and_of_experts()); });
}

void Engine::settle() {
  model_->units().wait_for_states(*stream_);
  if (options_.layout.mesh.ranks() == 1) return;
  reduce_amaxes();
  stream_->synchronize();
  check_ranks();
}

void Engine::add_over_ranks(std::span<double> numbers) {
  auto* const total = static_cast<double*>(evaluation_total_.data());
  stream_->copy_to_device(total, numbers.data(), numbers.size_bytes());
  model_->units().exchange([&](Stream& params) { all_reduce(params, groups_.all(), total, std::ssize(numbers)); });
  read(total, numbers);
}

double Engine::mean_over_ranks(double value) {
  add_over_ranks({&value, 1});
  return value / options_.layout.mesh.ranks();
}

std::vector<double> Engine::of_all_ranks(double value) {
  std::vector<double> values(static_cast<std::size_t>(options_.layout.mesh.ranks()));
  values[static_cast<std::size_t>(options_.rank)] = value;
  add_over_ranks(values);
  return values;
}

void Engine::close() {
  if (boundary_) boundary_->close();
  for (comm::Group* group : groups_.all_shards()) group->unshare(model_->units().params_stream());
  groups_.context->unshare(model_->units().params_stream());
  Stream* const tensor_stream = model_->units().side_streams().tensor;
  groups_.tensor->unshare(tensor_stream ? *tensor_stream : model_->units().params_stream());
}

std::array<double, 2> Engine::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                       std::span<const std::int32_t> document_starts) {
  // Rows that are missing are the first ones again, without targets: they count nothing and move no amax.
  const auto whole = static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len);
  require(!tokens.empty() && tokens.size() <= whole, "evaluation of ", tokens.size(), " tokens, but room for ", whole);
  std::vector<std::int32_t> all_tokens(whole), all_targets(whole, kernels::kIgnoredTarget);
  for (std::size_t i = 0; i < whole; ++i) all_tokens[i] = tokens[i % tokens.size()];
  std::copy(targets.begin(), targets.end(), all_targets.begin());
  std::vector<std::int32_t> starts;
  for (std::size_t first = 0; first < whole; first += tokens.size()) {
    for (const std::int32_t start : document_starts) {
      if (first + static_cast<std::size_t>(start) < whole) starts.push_back(static_cast<std::int32_t>(first) + start);
    }
  }

  auto* total = static_cast<double*>(evaluation_total_.data());
  stream_->zero(total, 2 * sizeof(double));
  nn::Scope evaluation = scope(nullptr);
  evaluation.router_total = zeroed_router_total(Routed::evaluation);
  model_->evaluate(evaluation, upload(all_tokens, all_targets, starts), total);
  model_->units().exchange([&](Stream& params) { all_reduce(params, groups_.all_of_tokens(), total, 2); });
  std::array<double, 2> result{};
  stream_->copy_to_host(result.data(), total, sizeof result);
  stream_->synchronize();
  telemetry::own_page().mark();
  check_ranks();
  return result;
}

Tensor Engine::logits(std::span<const std::int32_t> tokens) {
  // What follows the last token changes nothing before it: attention is causal.
  require(groups_.context->size() == 1, "logits of sequences that ", groups_.context->size(), " ranks hold in parts");
  require(groups_.stages->size() == 1, "logits of a model that ", groups_.stages->size(), " stages hold in parts");
  require(groups_.tensor->size() == 1, "logits of a vocabulary that ", groups_.tensor->size(), " ranks hold in parts");
  const auto whole = static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len);
  require(!tokens.empty() && tokens.size() <= whole, "logits of ", tokens.size(), " tokens, but room for ", whole);
  std::vector<std::int32_t> all(tokens.begin(), tokens.end());
  all.resize(whole, tokens.back());
  const Tensor result(logits_.data(), compute_dtype(options_.recipe), {static_cast<std::int64_t>(whole), options_.model.vocab});
  model_->logits(scope(nullptr), upload(all, all), result);
  return result.slice_rows(0, static_cast<std::int64_t>(tokens.size()));
}

}  // namespace octet::train
