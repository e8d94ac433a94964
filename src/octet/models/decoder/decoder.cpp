#include "octet/models/decoder/decoder.h"

#include "octet/base/require.h"
#include "octet/kernels/rope/rope.h"
#include "octet/models/registry.h"
#include "octet/nn/sequence.h"
#include "octet/parallel/context.h"
#include "octet/recipes/registry.h"

namespace octet::models {

using parallel::Kind;
using parallel::Task;

// A micro-batch under way. What it keeps from forward to backward lies in the stash and belongs to it alone.
struct Decoder::Flight {
  nn::Scope scope;
  const Batch& batch;
  double* total = nullptr;  // the loss is added here
  Tensor logits = {};       // or these are computed
  bool trains = false;
  Tensor x;           // the residual stream, [T / t, D]
  Tensor spare = {};  // without backward x and this take turns
  std::vector<BlockSaved> saved = {};
  Tensor g = {};                 // the gradient of the residual stream
  Quantized g_codes = {};        // its codes, in memory that every FP8 block uses in turn
  nn::Operand gy = {}, gx = {};  // the gradients of a block's output and input
  // The block under way, and what the arenas held before it.
  Tensor y = {};
  BlockForward forward = {};
  BlockBackward backward = {};
  std::size_t stash = 0, scratch = 0;
};

Decoder::Decoder(const DecoderConfig& config, const Recipe& recipe, parallel::TensorPlace place,
                 parallel::ExpertPlace expert_place)
    : config_(config), recipe_(recipe), parameters_(place, expert_place), scales_(recipe) {
  const Family& family = family_of(config.family, "model");
  shape_.embedding = parameters_.begin_unit();
  embedding_ = std::make_unique<nn::Embedding>(family.modules.embedding, config.vocab, config.dim, config.init_std, parameters_);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const int unit = parameters_.begin_unit();
    if (layer == 0) shape_.first_block = unit;
    blocks_.emplace_back(config_, family.modules, layer, recipe_, parameters_, scales_);
  }
  if (config.tied_head) parameters_.resume_unit(shape_.embedding);
  shape_.head = config.tied_head ? shape_.embedding : parameters_.begin_unit();
  final_norm_.emplace(config.norm, family.modules.final_norm, config.dim, config.norm_epsilon, parameters_);
  head_ = std::make_unique<nn::HeadLoss>(nn::HeadLoss::Options{.name = family.modules.head,
                                                               .vocab = config.vocab,
                                                               .dim = config.dim,
                                                               .init_std = config.init_std,
                                                               .tied = config.tied_head ? &embedding_->weight() : nullptr},
                                         recipe_, parameters_, scales_);
  std::vector<std::string> names;
  for (const nn::Linear* linear : linears()) {
    names.insert(names.end(), linear->parts().begin(), linear->parts().end());
    if (linear->parts().size() > 1) names.push_back(linear->name());
  }
  recipes::check_skip_patterns(recipe_, names);
}

std::vector<nn::Linear*> Decoder::linears() {
  std::vector<nn::Linear*> result;
  for (Block& block : blocks_) {
    for (nn::Linear* linear : block.linears()) result.push_back(linear);
  }
  result.push_back(&head_->head());
  return result;
}

void Decoder::materialise(Stream& stream, const parallel::Storage& storage, std::int64_t max_seq_len,
                          const parallel::Groups& groups, const parallel::Layout& layout) {
  parameters_.materialise(stream.device(), storage, groups, layout);
  units_ =
      std::make_unique<parallel::Units>(stream, parameters_, groups, layout, std::vector<int>{shape_.embedding, shape_.head});
  shape_.blocks = static_cast<int>(blocks_.size());
  units_->describe(shape_);
  const bool context = groups.context->size() > 1;
  shape_.forward_parts.clear();
  shape_.backward_parts.clear();
  for (const auto& part : Block::forward_parts(context)) shape_.forward_parts.push_back(part.part);
  for (const auto& part : Block::backward_parts(context)) shape_.backward_parts.push_back(part.part);
  scales_.materialise(stream);
  for (nn::Linear* linear : linears()) linear->bind();
  const std::int64_t rotary_dim = config_.rotary_dim == 0 ? config_.head_dim : config_.rotary_dim;
  const Shape table_shape{max_seq_len, rotary_dim}, positions_shape{max_seq_len};
  rope_buffer_ = stream.device().allocate(bytes_of(DType::f32, table_shape), MemoryCategory::state);
  rope_table_ = view(rope_buffer_, DType::f32, table_shape);
  positions_buffer_ = stream.device().allocate(bytes_of(DType::i32, positions_shape), MemoryCategory::state);
  positions_ = view(positions_buffer_, DType::i32, positions_shape);
  if (stream.kind() == DeviceKind::meta) return;  // the table takes longer than all else that is counted
  const std::vector<float> table =
      kernels::rope_table(kernels::rope_inverse_frequencies(rotary_dim, config_.rope_theta, config_.rope_scaling), max_seq_len);
  stream.copy_to_device(rope_table_.data, table.data(), rope_table_.bytes());
  std::vector<std::int32_t> positions(static_cast<std::size_t>(max_seq_len));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
  stream.copy_to_device(positions_.data, positions.data(), positions_.bytes());
  stream.synchronize();
}

// Positions of a micro-batch are laid out once per pass: of this rank's part of each sequence.
nn::Scope Decoder::scope_of(const nn::Scope& scope, const Batch& batch) const {
  require(batch.seq_len <= positions_.rows(), "a sequence of ", batch.seq_len, " tokens, but tables for ", positions_.rows());
  nn::Scope result = scope;
  result.batch = batch.batch;
  result.first_keys = batch.first_keys;
  result.documents = batch.documents;
  result.params_stream = &units_->params_stream();
  result.context_stream = &units_->context_stream();
  result.rope_table = rope_table_;
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

nn::Scope Decoder::scope_of_evaluation(const nn::Scope& scope, const Batch& batch) const {
  nn::Scope result = scope_of(scope, batch);
  result.checkpointing = nn::Checkpointing::selective;  // keeps the least
  if (scope.pass == nn::Pass::calibration) return result;
  result.record = nn::Record::nothing;
  result.pass = nn::Pass::evaluation;
  return result;
}

void Decoder::forward_backward(const nn::Scope& outer, const Batch& batch, double* total) {
  const ArenaScope step(outer.stash), gradients(outer.scratch);
  Flight flight{.scope = scope_of(outer, batch), .batch = batch, .total = total, .trains = true};
  flight.saved.resize(blocks_.size());
  shape_.full_recompute = flight.scope.checkpointing == nn::Checkpointing::full;
  run(flight, parallel::build_micro_batch(shape_, units_->slots(), units_->begin_micro_batch()));
}

void Decoder::evaluate(const nn::Scope& outer, const Batch& batch, double* total) {
  const ArenaScope step(outer.stash);
  Flight flight{.scope = scope_of_evaluation(outer, batch), .batch = batch, .total = total};
  flight.saved.resize(1);
  run(flight, parallel::build_evaluation(shape_, units_->slots()));
}

void Decoder::logits(const nn::Scope& outer, const Batch& batch, const Tensor& logits) {
  const ArenaScope step(outer.stash);
  Flight flight{.scope = scope_of_evaluation(outer, batch), .batch = batch, .logits = logits};
  flight.saved.resize(1);
  run(flight, parallel::build_evaluation(shape_, units_->slots()));
}

void Decoder::run(Flight& flight, const std::vector<Task>& tasks) {
  for (const Task& task : arrange_ ? arrange_(tasks) : tasks) {
    units_->wait_before(task);
    const double begin = times_ ? units_->stream_of(task).record()->seconds() : 0;
    run(flight, task);
    if (times_) times_->push_back({task, begin, units_->stream_of(task).record()->seconds()});
    units_->signal_after(task);
  }
}

void Decoder::run(Flight& flight, const Task& task) {
  switch (task.kind) {
    case Kind::gather:
    case Kind::open:
    case Kind::close:
    case Kind::reduce:
      return units_->run(flight.scope.scratch, task);
    case Kind::embed:
      return embed(flight);
    case Kind::forward:
      return forward(flight, task);
    case Kind::recompute:
      return recompute(flight, task.index);
    case Kind::head:
      return flight.trains ? head_backward(flight) : head_forward(flight);
    case Kind::backward:
      return backward(flight, task);
    case Kind::embed_backward:
      return embedding_->backward(flight.scope, flight.batch.tokens, flight.g);
  }
}

void Decoder::embed(Flight& flight) {
  const nn::Scope& scope = flight.scope;
  const Shape wide{nn::share_of_tokens(scope, flight.batch.tokens.rows()), config_.dim};
  flight.x = allocate(scope.stash, scope.dtype, wide);
  if (!flight.trains) flight.spare = allocate(scope.stash, scope.dtype, wide);
  embedding_->forward(scope, flight.batch.tokens, flight.x);
}

void Decoder::forward(Flight& flight, const Task& task) {
  const nn::Scope& scope = flight.scope;
  const bool full = flight.trains && scope.checkpointing == nn::Checkpointing::full;
  if (task.first) {
    scope.stream.begin_range(concat("layer ", task.index, " forward"));
    flight.y = flight.trains ? allocate(scope.stash, scope.dtype, flight.x.shape) : flight.spare;
    flight.stash = scope.stash.used();
    flight.scratch = scope.scratch.used();
    flight.forward = {.x = flight.x, .y = flight.y};
  }
  nn::Scope least = scope;
  if (full) least.checkpointing = nn::Checkpointing::selective;  // nothing of it stays: keep the least
  const auto part = Block::forward_parts(scope.context.size() > 1)[static_cast<std::size_t>(task.part)];
  BlockSaved& saved = flight.saved[flight.trains ? static_cast<std::size_t>(task.index) : 0];
  (blocks_[static_cast<std::size_t>(task.index)].*part.run)(least, saved, flight.forward);
  if (!task.last) return;
  scope.scratch.release_to(flight.scratch);
  if (full || !flight.trains) scope.stash.release_to(flight.stash);
  flight.spare = std::exchange(flight.x, flight.y);
  scope.stream.end_range();
}

void Decoder::begin_backward(Flight& flight, int block) {
  const nn::Scope& scope = flight.scope;
  scope.stream.begin_range(concat("layer ", block, " backward"));
  flight.gx = block > 0 ? gradient_of(flight, block - 1) : nn::Operand{.values = flight.g};
  flight.stash = scope.stash.used();
}

void Decoder::recompute(Flight& flight, int block) {
  begin_backward(flight, block);
  nn::Scope scope = nn::without_record(flight.scope);
  scope.router_total = nullptr;
  const ArenaScope temporaries(scope.scratch);
  BlockSaved& saved = flight.saved[static_cast<std::size_t>(block)];
  BlockForward work{.x = saved.x};
  for (const auto& part : Block::forward_parts(scope.context.size() > 1)) {
    (blocks_[static_cast<std::size_t>(block)].*part.run)(scope, saved, work);
  }
}

void Decoder::backward(Flight& flight, const Task& task) {
  const nn::Scope& scope = flight.scope;
  if (task.first) {
    if (scope.checkpointing != nn::Checkpointing::full) begin_backward(flight, task.index);
    flight.scratch = scope.scratch.used();
    flight.backward = {.gy = flight.gy, .gx = flight.gx};
  }
  const auto part = Block::backward_parts(scope.context.size() > 1)[static_cast<std::size_t>(task.part)];
  const auto block = static_cast<std::size_t>(task.index);
  (blocks_[block].*part.run)(scope, flight.saved[block], flight.backward);
  if (!task.last) return;
  scope.scratch.release_to(flight.scratch);
  scope.stash.release_to(flight.stash);
  flight.gy = flight.gx;
  scope.stream.end_range();
}

nn::Operand Decoder::gradient_of(Flight& flight, int block) {
  return blocks_[static_cast<std::size_t>(block)].output_gradient(flight.scope, flight.g,
                                                                  flight.g_codes.rowwise ? &flight.g_codes : nullptr);
}

void Decoder::head_backward(Flight& flight) {
  const nn::Scope& scope = flight.scope;
  flight.g = allocate(scope.stash, scope.dtype, flight.x.shape);
  for (std::size_t i = 0; i < blocks_.size() && !flight.g_codes.rowwise; ++i) {
    flight.g_codes = blocks_[i].output_gradient(scope, flight.g, nullptr).codes;
  }
  flight.gy = gradient_of(flight, shape_.blocks - 1);
  const TraceRange range(scope.stream, "head");
  const ArenaScope temporaries(scope.scratch);
  const Tensor h = allocate(scope.scratch, scope.dtype, flight.x.shape);
  const Tensor gh = allocate(scope.scratch, scope.dtype, flight.x.shape);
  const Tensor statistics = final_norm_->allocate_statistics(scope, scope.scratch, flight.x.rows());
  final_norm_->forward(scope, flight.x, {.values = h}, statistics);
  head_->loss_and_gradient(scope, h, flight.batch.targets, flight.total, gh);
  scope.stream.zero(flight.g.data, flight.g.bytes());
  final_norm_->backward(scope, gh, flight.x, statistics, flight.gy);
}

void Decoder::head_forward(Flight& flight) {
  const nn::Scope& scope = flight.scope;
  const ArenaScope temporaries(scope.scratch);
  const Tensor h = allocate(scope.scratch, scope.dtype, flight.x.shape);
  const Tensor statistics = final_norm_->allocate_statistics(scope, scope.scratch, flight.x.rows());
  final_norm_->forward(scope, flight.x, {.values = h}, statistics);
  if (flight.logits) {
    head_->logits(scope, h, flight.logits);
  } else {
    head_->loss(scope, h, flight.batch.targets, flight.total);
  }
}

}  // namespace octet::models
