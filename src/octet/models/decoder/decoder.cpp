#include "octet/models/decoder/decoder.h"

#include <set>

#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/kernels/rope/rope.h"
#include "octet/models/registry.h"
#include "octet/nn/sequence.h"
#include "octet/parallel/context.h"
#include "octet/recipes/registry.h"

namespace octet::models {

using parallel::Kind;
using parallel::Task;

// The arguments of forward_backward or evaluate.
struct Decoder::MicroBatch {
  nn::Scope scope;
  Batch batch;
  double* total = nullptr;  // the loss is added here
  Tensor logits = {};       // or these are computed
  bool trains = false;
};

// A micro-batch's pass through a chunk. What it keeps from forward to backward lies in its stash and belongs to it alone.
struct Decoder::Flight {
  const MicroBatch& of;
  nn::Scope scope;  // its stash is that of the flight in forward, and that of the backward pass under way afterwards
  parallel::BlockRange blocks;
  Arena& kept;  // the stash of the flight
  std::size_t kept_before = 0;
  Tensor x = {};                                        // the residual stream, [T / t, D]
  Tensor spare = {};                                    // without backward x and this take turns
  std::vector<BlockSaved> saved = {};                   // of all blocks; without backward one
  Tensor g = {};                                        // the gradient of the residual stream
  Quantized g_codes = {};                               // its codes, in memory that every FP8 block uses in turn
  nn::Operand gy = {};                                  // the gradient of a block's output
  std::size_t backward_before = 0, scratch_before = 0;  // what the arenas held before the backward pass
  // The block under way, and what the arenas held before it.
  BlockWork work = {};
  std::size_t stash = 0, scratch = 0;
};

Decoder::~Decoder() = default;

Decoder::Decoder(const DecoderConfig& config, const Recipe& recipe, parallel::TensorPlace place,
                 parallel::ExpertPlace expert_place, parallel::Stages stages, int stage, const Adapters& adapters)
    : config_(config), recipe_(recipe), parameters_(place, expert_place, stage), scales_(recipe) {
  const Family& family = family_of(config.family, "model");
  shape_.blocks = static_cast<int>(config.layers);
  shape_.stages = stages;
  shape_.stage = stage;
  require(!config.tied_head || stages.count == 1, "a tied head on ", stages.count, " pipeline stages");
  parameters_.set_frozen(static_cast<bool>(adapters));
  shape_.embedding = parameters_.begin_unit();
  embedding_ = std::make_unique<nn::Embedding>(family.modules.embedding, config.vocab, config.dim, config.init_std, parameters_);
  if (config.learned_positions) {
    position_embedding_.emplace(family.modules.positions, config.max_position, config.dim, config.init_std, parameters_);
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const int unit = parameters_.begin_unit(parallel::stage_of_block(shape_.blocks, stages, static_cast<int>(layer)));
    if (layer == 0) shape_.first_block = unit;
    blocks_.emplace_back(config_, family.modules, layer, recipe_, parameters_, scales_);
  }
  if (config.tied_head) parameters_.resume_unit(shape_.embedding);
  shape_.head = config.tied_head ? shape_.embedding : parameters_.begin_unit(stages.count - 1);
  final_norm_.emplace(config.norm, family.modules.final_norm, config.dim, config.norm_epsilon, parameters_);
  head_ = std::make_unique<nn::HeadLoss>(nn::HeadLoss::Options{.name = family.modules.head,
                                                               .vocab = config.vocab,
                                                               .dim = config.dim,
                                                               .init_std = config.init_std,
                                                               .tied = config.tied_head ? &embedding_->weight() : nullptr},
                                         recipe_, parameters_, scales_);
  std::vector<std::string> names;
  for (const nn::LinearWeight* linear : linears()) {
    names.insert(names.end(), linear->parts().begin(), linear->parts().end());
    if (linear->parts().size() > 1) names.push_back(linear->name());
  }
  recipes::check_skip_patterns(recipe_, names);
  if (adapters) add_adapters(adapters);
}

void Decoder::add_adapters(const Adapters& adapters) {
  parameters_.set_frozen(false);
  const auto names = [](const std::string& target, const std::string& module) {
    return target == kAllLinear || module == target || module.ends_with("." + target);
  };
  const bool from_file = !adapters.file.empty();
  const ExitCode wrong = from_file ? ExitCode::data : ExitCode::config;
  std::vector<bool> found(adapters.targets.size());
  std::set<std::string> known;
  for (Block& block : blocks_) {
    for (nn::LinearWeight* linear : block.linears()) {
      std::vector<std::size_t> parts;
      for (std::size_t i = 0; i < linear->parts().size(); ++i) {
        const std::string& module = linear->parts()[i];
        known.insert(module.substr(module.rfind('.') + 1));
        bool adapted = false;
        for (std::size_t t = 0; t < adapters.targets.size(); ++t) {
          if (names(adapters.targets[t], module)) adapted = found[t] = true;
        }
        if (adapted) parts.push_back(i);
      }
      if (parts.empty()) continue;
      parameters_.resume_unit(linear->weight().unit);
      linear->adapt({.parts = parts, .rank = adapters.rank, .scale = adapters.scale(), .dropout = adapters.dropout}, parameters_);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const nn::Adapter::Part& part = linear->adapter()->parts()[i];
        const std::int64_t out = part.end - part.begin, in = linear->weight().cut.global()[1];
        demand(adapters.rank <= std::min(out, in), wrong, from_file ? adapters.file + ": rank " : "lora.rank = ", adapters.rank,
               ": ", linear->parts()[parts[i]], " is [", out, ", ", in, "], and a rank is at most the smaller dim");
      }
    }
    block.serve_adapters();
  }
  const std::string list = joined(known);
  for (std::size_t t = 0; t < found.size(); ++t) {
    demand(found[t] || !from_file, wrong, adapters.file, ": adapts ", in_quotes(adapters.targets[t]),
           ", but no linear of the model's blocks is called so; the blocks have ", list);
    demand(found[t], wrong, "lora.targets: no linear of a block is called ", in_quotes(adapters.targets[t]), "; the blocks have ",
           list, ", and \"", kAllLinear, "\" is all of them");
  }
}

void Decoder::update_router_biases(Stream& stream, const double* router_total, const float* found_inf) const {
  for (const Block& block : blocks_) {
    if (block.is_mixture()) block.mixture().update_bias(stream, router_total, found_inf);
  }
}

std::vector<std::string> Decoder::mixtures() const {
  std::vector<std::string> names;
  for (const Block& block : blocks_) {
    if (block.is_mixture()) names.push_back(block.mixture().name());
  }
  return names;
}

std::vector<nn::LinearWeight*> Decoder::linears() {
  std::vector<nn::LinearWeight*> result;
  for (Block& block : blocks_) {
    for (nn::LinearWeight* linear : block.linears()) result.push_back(linear);
  }
  result.push_back(&head_->head().weights()[0]);
  return result;
}

std::vector<LinearUse> Decoder::uses() {
  std::vector<LinearUse> result;
  for (Block& block : blocks_) {
    for (const LinearUse& use : block.uses()) result.push_back(use);
  }
  result.push_back({.linear = &head_->head().weights()[0], .kind = "head"});
  return result;
}

void Decoder::materialise(Stream& stream, const parallel::Storage& storage, std::int64_t max_seq_len,
                          const parallel::Groups& groups, const parallel::Layout& layout) {
  parameters_.materialise(stream.device(), storage, &groups, layout);
  units_ = std::make_unique<parallel::Units>(stream, parameters_, groups, layout, shape_);
  for (Block& block : blocks_) shape_.block_parts.push_back(block.lay_out(groups.context->size() > 1, layout.lanes > 1));
  scales_.materialise(stream);
  for (nn::LinearWeight* linear : linears()) {
    if (linear->weight().held) linear->bind();
  }
  units_->prepare_casts();
  const Shape table_shape{max_seq_len, config_.rotated_dims()}, positions_shape{max_seq_len};
  rope_buffer_ = stream.device().allocate(bytes_of(DType::f32, table_shape), MemoryCategory::state);
  rope_table_ = view(rope_buffer_, DType::f32, table_shape);
  positions_buffer_ = stream.device().allocate(bytes_of(DType::i32, positions_shape), MemoryCategory::state);
  positions_ = view(positions_buffer_, DType::i32, positions_shape);
  if (stream.kind() == DeviceKind::meta) return;  // the table takes longer than all else that is counted
  const std::vector<float> table =
      kernels::rope_table(config_.rotated_dims(), config_.rope_theta, config_.rope_scaling, max_seq_len);
  stream.copy_to_device(rope_table_.data, table.data(), rope_table_.bytes());
  std::vector<std::int32_t> positions(static_cast<std::size_t>(max_seq_len));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
  stream.copy_to_device(positions_.data, positions.data(), positions_.bytes());
  stream.synchronize();
}

// Positions of a micro-batch are laid out once per pass: of this rank's part of each sequence. Documents bring their own.
nn::Scope Decoder::scope_of(const nn::Scope& scope, const Batch& batch) const {
  require(batch.seq_len <= positions_.rows(), "a sequence of ", batch.seq_len, " tokens, but tables for ", positions_.rows());
  nn::Scope result = scope;
  result.batch = batch.batch;
  result.counted = batch.counted;
  result.first_keys = batch.first_keys;
  result.documents = batch.documents;
  result.token_numbers = batch.token_numbers;
  result.streams = &units_->streams();
  result.rope_table = rope_table_;
  result.positions = batch.positions;
  if (result.positions) return result;
  result.positions = allocate(scope.stash, DType::i32, {batch.tokens.rows()});
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < batch.batch; ++i) {
    for (const parallel::TokenRange& range : parallel::zigzag_chunks(batch.seq_len, scope.context.rank(), scope.context.size())) {
      const Tensor part = result.positions.slice_rows(at, at + range.count());
      scope.stream.copy(part.data, positions_.slice_rows(range.begin, range.end).data, part.bytes());
      at += range.count();
    }
  }
  return result;
}

void Decoder::begin_step(std::int64_t micro_batches, bool reduces) {
  require(micro_batches >= 1, "a step of ", micro_batches, " micro-batches");
  micro_batches_of_step_ = static_cast<int>(micro_batches);
  reduces_ = reduces;
  begun_ = 0;
  units_->begin_step();
}

std::vector<Task> Decoder::update_tasks() {
  require(begun_ == micro_batches_of_step_ || !shape_.reduced, "a step of ", micro_batches_of_step_, " micro-batches ends after ",
          begun_);
  return parallel::build_update(shape_, units_->slots());
}

void Decoder::forward_backward(const nn::Scope& scope, const Batch& batch, double* total) {
  const int number = begun_++;
  const int count = std::max(micro_batches_of_step_, number + 1);
  if (visits_.size() != static_cast<std::size_t>(2 * count * shape_.stages.chunks)) {
    visits_ = parallel::visits_of(shape_.stages, shape_.stage, count, shape_.lanes);
    under_way_ = static_cast<std::size_t>(parallel::in_flight(visits_).micro_batches);
  }
  micro_batches_.resize(under_way_);
  micro_batches_[static_cast<std::size_t>(number) % micro_batches_.size()] =
      std::make_unique<MicroBatch>(MicroBatch{scope, batch, total, {}, true});
  shape_.recomputed_blocks = scope.checkpointing == nn::Checkpointing::full ? full_blocks_ : 0;
  // The visits of the first `of` micro-batches that can run without the others.
  const auto visits_until = [&](int of) {
    const int complete = of < count ? of / shape_.lanes * shape_.lanes : count;
    const auto beyond = [&](const parallel::Visit& visit) { return visit.micro_batch >= complete; };
    return static_cast<std::size_t>(std::find_if(visits_.begin(), visits_.end(), beyond) - visits_.begin());
  };
  const int last = reduces_ ? micro_batches_of_step_ : count + 1;
  run(parallel::build_visits(shape_, units_->slots(), visits_, visits_until(number), visits_until(number + 1), last));
}

void Decoder::evaluate(const nn::Scope& outer, const Batch& batch, double* total, const Tensor& logits) {
  nn::Scope scope = outer;
  scope.checkpointing = nn::Checkpointing::selective;  // keeps the least
  if (scope.pass != nn::Pass::calibration) {
    scope.record = nn::Record::nothing;
    scope.pass = nn::Pass::evaluation;
  }
  micro_batches_.clear();
  micro_batches_.push_back(std::make_unique<MicroBatch>(MicroBatch{scope, batch, total, logits, false}));
  run(parallel::build_evaluation(shape_, units_->slots()));
}

void Decoder::run(const std::vector<Task>& tasks) {
  units_->executor().run(tasks, [this](const Task& task) { run(task); });
}

void Decoder::run(const Task& task) {
  const MicroBatch& first = *micro_batches_.front();
  switch (task.kind) {
    case Kind::close:
      if (Fingerprint* const fingerprint = first.batch.fingerprint; fingerprint && writes_gradients(task.use)) {
        fingerprint->gradients(first.scope.stream, task.index);
      }
      return;
    case Kind::gather:
    case Kind::open:
    case Kind::reduce:
      return units_->run(first.scope.scratch, task);
    case Kind::receive:
    case Kind::send:
      return memory_.boundary->run(task, {});
    case Kind::load:
      return load(task);
    default:
      Flight& flight = *flights_[static_cast<std::size_t>(task.flight)];
      flight.scope.overwrites = task.overwrites;
      return run(flight, task);
  }
}

void Decoder::run(Flight& flight, const Task& task) {
  const bool gradients = task.index == static_cast<int>(parallel::Message::gradients);
  switch (task.kind) {
    case Kind::take:
      if (!gradients) return memory_.boundary->run(task, flight.x);
      begin_backward(flight);
      flight.gy.epilogue = {};  // the values are there, so the block quantizes them itself
      return memory_.boundary->run(task, flight.g);
    case Kind::give:
      memory_.boundary->run(task, gradients ? flight.g : flight.x);
      if (gradients || !flight.of.trains) finish(flight);
      return;
    case Kind::embed:
      embedding_->forward(flight.scope, flight.of.batch.tokens, flight.x);
      if (position_embedding_) position_embedding_->forward(flight.scope, flight.x);
      return;
    case Kind::forward:
      return forward(flight, task);
    case Kind::recompute:
      return recompute(flight, task);
    case Kind::head:
      head(flight);
      if (!flight.of.trains) finish(flight);
      return;
    case Kind::backward:
      return backward(flight, task);
    case Kind::embed_backward:
      embedding_->backward(flight.scope, flight.of.batch.tokens, flight.g);
      if (position_embedding_) position_embedding_->backward(flight.scope, flight.g);
      return finish(flight);
    default:
      require(false, "a task that is not one of a micro-batch");
  }
}

void Decoder::load(const Task& task) {
  const MicroBatch& of = *micro_batches_[static_cast<std::size_t>(task.micro_batch) % micro_batches_.size()];
  const auto number = static_cast<std::size_t>(task.flight);
  nn::Scope scope = of.scope;
  if (!memory_.stashes.empty()) scope.stash = *memory_.stashes.at(number);
  Arena& stash = scope.stash;
  const std::size_t before = stash.used();
  if (flights_.size() <= number) flights_.resize(number + 1);
  const int chunk = task.index * shape_.stages.count + shape_.stage;
  flights_[number] = std::make_unique<Flight>(Flight{.of = of,
                                                     .scope = scope_of(scope, of.batch),
                                                     .blocks = parallel::blocks_of(shape_.blocks, shape_.stages, chunk),
                                                     .kept = stash,
                                                     .kept_before = before});
  Flight& flight = *flights_[number];
  const Shape wide{nn::share_of_tokens(scope, of.batch.tokens.rows()), config_.dim};
  flight.x = allocate(stash, scope.dtype, wide);
  if (!of.trains) flight.spare = allocate(stash, scope.dtype, wide);
  flight.saved.resize(of.trains ? blocks_.size() : 1);
}

// Allocates the gradient of the residual stream after the last block of the chunk.
void Decoder::begin_backward(Flight& flight) {
  if (memory_.backward) flight.scope.stash = *memory_.backward;
  const nn::Scope& scope = flight.scope;
  flight.backward_before = scope.stash.get().used();
  flight.scratch_before = scope.scratch.used();
  flight.g = allocate(scope.stash, scope.dtype, flight.x.shape);
  for (int i = flight.blocks.begin; i < flight.blocks.end && !flight.g_codes.rowwise; ++i) {
    flight.g_codes = block(i).output_gradient(scope, flight.g, nullptr).codes;
  }
  flight.gy = gradient_of(flight, flight.blocks.end - 1);
}

// Frees the memory of a pass.
void Decoder::finish(Flight& flight) {
  if (flight.of.trains) {
    flight.scope.stash.get().release_to(flight.backward_before);
    flight.scope.scratch.release_to(flight.scratch_before);
  }
  flight.kept.release_to(flight.kept_before);
}

nn::Scope Decoder::scope_of_block(const Flight& flight, int block) const {
  nn::Scope scope = flight.scope;
  const bool full = scope.checkpointing == nn::Checkpointing::full;
  if (full && !shape_.recomputes(block)) scope.checkpointing = nn::Checkpointing::selective;
  return scope;
}

void Decoder::forward(Flight& flight, const Task& task) {
  const nn::Scope scope = scope_of_block(flight, task.index);
  const bool stays = flight.of.trains && scope.checkpointing != nn::Checkpointing::full;
  nn::Scope least = scope;
  if (!stays) {
    least.checkpointing = nn::Checkpointing::selective;  // keeps the least
    // The backward stash is free during forward. In a flight's stash these temporaries would need room once for each pass under
    // way.
    if (memory_.backward) least.stash = *memory_.backward;
  }
  if (task.first) {
    scope.stream.begin_range(concat("block ", task.index, " forward"));
    flight.work = {.x = flight.x, .y = flight.of.trains ? allocate(scope.stash, scope.dtype, flight.x.shape) : flight.spare};
    flight.stash = least.stash.get().used();
    flight.scratch = scope.scratch.used();
  }
  BlockSaved& saved = flight.saved[flight.of.trains ? static_cast<std::size_t>(task.index) : 0];
  block(task.index).forward(task.part, least, saved, flight.work);
  if (!task.last) return;
  scope.scratch.release_to(flight.scratch);
  if (!stays) least.stash.get().release_to(flight.stash);
  flight.spare = std::exchange(flight.x, flight.work.y);
  if (Fingerprint* const fingerprint = flight.of.batch.fingerprint) fingerprint->output(scope.stream, task.index, flight.x);
  scope.stream.end_range();
}

void Decoder::begin_block_backward(Flight& flight, int block) {
  const nn::Scope& scope = flight.scope;
  scope.stream.begin_range(concat("block ", block, " backward"));
  flight.work = {.x = flight.saved[static_cast<std::size_t>(block)].x, .gy = flight.gy, .gx = gradient_of(flight, block - 1)};
  flight.stash = scope.stash.get().used();
}

void Decoder::recompute(Flight& flight, const Task& task) {
  if (task.first) {
    begin_block_backward(flight, task.index);
    flight.scratch = flight.scope.scratch.used();
  }
  nn::Scope scope = nn::without_record(flight.scope);
  scope.router_total = nullptr;
  block(task.index).forward(task.part, scope, flight.saved[static_cast<std::size_t>(task.index)], flight.work);
  if (task.last) scope.scratch.release_to(flight.scratch);
}

void Decoder::backward(Flight& flight, const Task& task) {
  const nn::Scope scope = scope_of_block(flight, task.index);
  if (task.first) {
    if (scope.checkpointing != nn::Checkpointing::full) begin_block_backward(flight, task.index);
    flight.scratch = scope.scratch.used();
  }
  block(task.index).backward(task.part, scope, flight.saved[static_cast<std::size_t>(task.index)], flight.work);
  if (!task.last) return;
  scope.scratch.release_to(flight.scratch);
  scope.stash.get().release_to(flight.stash);
  flight.gy = flight.work.gx;
  scope.stream.end_range();
}

// The gradient that leaves a chunk has only values, which the embedding or another stage reads.
nn::Operand Decoder::gradient_of(Flight& flight, int number) {
  if (!flight.blocks.contains(number)) return {.values = flight.g};
  return block(number).output_gradient(flight.scope, flight.g, flight.g_codes.rowwise ? &flight.g_codes : nullptr);
}

void Decoder::head(Flight& flight) {
  if (flight.of.trains) begin_backward(flight);
  const nn::Scope& scope = flight.scope;
  const TraceRange range(scope.stream, "head");
  const ArenaScope temporaries(scope.scratch);
  const Tensor h = allocate(scope.scratch, scope.dtype, flight.x.shape);
  const Tensor gh = flight.of.trains ? allocate(scope.scratch, scope.dtype, flight.x.shape) : Tensor{};
  const Tensor statistics = final_norm_->allocate_statistics(scope, scope.scratch, flight.x.rows());
  final_norm_->forward(scope, flight.x, {.values = h}, statistics);
  if (flight.of.logits) return head_->logits(scope, h, flight.of.logits);
  head_->loss(scope, h, flight.of.batch.targets, flight.of.total, gh);
  if (!flight.of.trains) return;
  scope.stream.zero(flight.g.data, flight.g.bytes());
  final_norm_->backward(scope, gh, flight.x, statistics, flight.gy);
}

}  // namespace octet::models
