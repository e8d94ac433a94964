#include "octet/train/engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/parallel/context.h"
#include "octet/parallel/names.h"
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
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(options_.seq_len)) - first_keys[i];
    result.documents += positions[i] == 0;
  }
  result.positions = place(positions);
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
  const parallel::StepShape& shape = model_->shape();
  bool updates = false;
  optimizer_->ask(*stream_, asks);
  units.executor().run(model_->update_tasks(), [&](const parallel::Task& task) {
    switch (task.kind) {
      case parallel::Kind::squares: {
        const TraceRange part(*stream_, "squares of " + name_of_units(shape, task.units));
        units.sum_over_holders(scratch(), task.units);
        return optimizer_->add_squares(*stream_, scratch(), task.units);
      }
      case parallel::Kind::sums: {  // adds up the step's counts, and takes the largest of the ranks' amaxes
        Stream& params = units.streams()[task.stream];
        optimizer_->add_up_ranks(scratch(), groups_, units);
        double* const total = router_total(Routed::step);
        if (total) all_reduce(params, groups_.all_of_tokens(), total, router_numbers());
        return model_->scales().reduce(params, scratch(), groups_.all_and_of_experts());
      }
      case parallel::Kind::scales:
        optimizer_->prepare(*stream_, {.learning_rate = learning_rate, .step = step});
        return model_->scales().update(*stream_, optimizer_->found_inf());
      case parallel::Kind::update: {
        if (!std::exchange(updates, true)) {
          if (before_update) before_update();
          model_->update_router_biases(*stream_, router_total(Routed::step), optimizer_->found_inf());
        }
        const bool of_piece = task.part >= 0;
        const TraceRange part(*stream_,
                              "update " + (of_piece ? name_of_piece(shape, task.part) : name_of_units(shape, task.units)));
        return optimizer_->update(*stream_, static_cast<std::size_t>(of_piece ? task.part : task.index));
      }
      default:
        return units.run(scratch(), task);
    }
  });
}

void Engine::all_reduce(Stream& params, const std::vector<comm::Group*>& groups, double* numbers, std::int64_t count) {
  for (comm::Group* group : groups) group->all_reduce(params, scratch(), {.x = {numbers, DType::f64, {count}}});
}

// Calibration attends in BF16, which keeps more for backward than attention in FP8. It therefore keeps only the inputs of
// blocks, which changes no bit, so that it takes no more memory than training.
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

std::array<double, 2> Engine::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                       std::span<const std::int32_t> document_starts) {
  // Missing rows are filled with the first ones, without targets: they do not count and change no amax.
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
  read(total, result);
  telemetry::own_page().mark();
  return result;
}

Tensor Engine::logits(std::span<const std::int32_t> tokens) {
  // Tokens after the last one change nothing before it, because attention is causal.
  require(groups_.context->size() == 1, "logits of sequences that ", groups_.context->size(), " ranks hold in parts");
  require(groups_.stages->size() == 1, "logits of a model that ", groups_.stages->size(), " stages hold in parts");
  require(groups_.tensor->size() == 1, "logits of a vocabulary that ", groups_.tensor->size(), " ranks hold in parts");
  const auto whole = static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len);
  require(!tokens.empty() && tokens.size() <= whole, "logits of ", tokens.size(), " tokens, but room for ", whole);
  std::vector<std::int32_t> all(tokens.begin(), tokens.end());
  all.resize(whole, tokens.back());
  const Tensor result(logits_.data(), compute_dtype(options_.recipe), {static_cast<std::int64_t>(whole), options_.model.vocab});
  model_->evaluate(scope(nullptr), upload(all, all), nullptr, result);
  return result.slice_rows(0, static_cast<std::int64_t>(tokens.size()));
}

}  // namespace octet::train
