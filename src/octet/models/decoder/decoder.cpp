#include "octet/models/decoder/decoder.h"

#include "octet/base/require.h"
#include "octet/kernels/rope/rope.h"
#include "octet/models/registry.h"
#include "octet/nn/sequence.h"
#include "octet/parallel/context.h"
#include "octet/recipes/registry.h"

namespace octet::models {

using parallel::Need;
using parallel::Use;

Decoder::Decoder(const DecoderConfig& config, const Recipe& recipe, parallel::TensorPlace place,
                 parallel::ExpertPlace expert_place)
    : config_(config), recipe_(recipe), parameters_(place, expert_place), scales_(recipe) {
  const Family& family = family_of(config.family, "model");
  embedding_unit_ = parameters_.begin_unit();
  embedding_ = std::make_unique<nn::Embedding>(family.modules.embedding, config.vocab, config.dim, config.init_std, parameters_);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const int unit = parameters_.begin_unit();
    if (layer == 0) first_block_unit_ = unit;
    blocks_.emplace_back(config_, family.modules, layer, recipe_, parameters_, scales_);
  }
  if (config.tied_head) parameters_.resume_unit(embedding_unit_);
  head_unit_ = config.tied_head ? embedding_unit_ : parameters_.begin_unit();
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
  units_ = std::make_unique<parallel::Units>(stream, parameters_, groups, layout, std::vector<int>{embedding_unit_, head_unit_});
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

void Decoder::run_forward(const nn::Scope& scope, const Block& block, const Tensor& x, const Tensor& y, BlockSaved& saved,
                          Need next) {
  const ArenaScope temporaries(scope.scratch);
  BlockForward work{.x = x, .y = y};
  for (const Block::Part<BlockForward>& part : Block::forward_parts(scope.context.size() > 1)) {
    if (part.beside == Beside::gather && next.unit >= 0) units_->gather_behind(scope.scratch, next);
    (block.*part.run)(scope, saved, work);
  }
}

void Decoder::run_backward(const nn::Scope& scope, const Block& block, const nn::Operand& gy, const nn::Operand& gx,
                           BlockSaved& saved) {
  const ArenaScope temporaries(scope.scratch);
  BlockBackward work{.gy = gy, .gx = gx};
  for (const Block::Part<BlockBackward>& part : Block::backward_parts(scope.context.size() > 1)) {
    if (part.beside == Beside::reduce) units_->reduce_now(scope.scratch);
    (block.*part.run)(scope, saved, work);
  }
}

void Decoder::forward_backward(const nn::Scope& outer, const Batch& batch, double* total) {
  const ArenaScope step(outer.stash);
  const nn::Scope scope = scope_of(outer, batch);
  const bool full = scope.checkpointing == nn::Checkpointing::full;
  nn::Scope first = scope, recompute = scope;
  if (full) first.checkpointing = nn::Checkpointing::selective;  // nothing of it stays: keep the least
  recompute.record = nn::Record::nothing;
  recompute.router_total = nullptr;
  const std::int64_t tokens = nn::share_of_tokens(scope, batch.tokens.rows());
  const Shape wide{tokens, config_.dim};

  Tensor x = allocate(scope.stash, scope.dtype, wide);
  units_->begin_micro_batch();
  const int blocks = static_cast<int>(blocks_.size());
  std::vector<BlockSaved> saved(blocks_.size());
  const auto block_need = [&](int i, Use use) { return Need{first_block_unit_ + i, use}; };
  const Need head_need{head_unit_, Use::both};
  units_->with(scope.scratch, {embedding_unit_, Use::forward}, block_need(0, Use::forward),
               [&] { embedding_->forward(scope, batch.tokens, x); });
  for (int layer = 0; layer < blocks; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    const Tensor y = allocate(scope.stash, scope.dtype, wide);
    const Need next = layer + 1 < blocks ? block_need(layer + 1, Use::forward) : head_need;
    // With a context axis the next unit is gathered behind the keys, on which attention waits.
    const bool behind_keys = scope.context.size() > 1;
    units_->with(scope.scratch, block_need(layer, Use::forward), behind_keys ? Need{} : next, [&] {
      const TraceRange range(scope.stream, concat("layer ", i, " forward"));
      if (full) {
        const ArenaScope forgotten(scope.stash);
        run_forward(first, blocks_[i], x, y, saved[i], next);
      } else {
        run_forward(scope, blocks_[i], x, y, saved[i], next);
      }
    });
    x = y;
  }

  const ArenaScope gradients(scope.scratch);
  const Tensor g = allocate(scope.stash, scope.dtype, wide);
  // The gradient that passes from block to block: its values, and its codes in memory that every FP8 block uses in turn.
  Quantized memory;
  for (std::size_t i = 0; i < blocks_.size() && !memory.rowwise; ++i)
    memory = blocks_[i].output_gradient(scope, g, nullptr).codes;
  const auto gradient_of = [&](std::size_t i) {
    return blocks_[i].output_gradient(scope, g, memory.rowwise ? &memory : nullptr);
  };
  nn::Operand gy = gradient_of(blocks_.size() - 1);
  const auto head_pass = [&] {
    const TraceRange range(scope.stream, "head");
    const ArenaScope temporaries(scope.scratch);
    const Tensor h = allocate(scope.scratch, scope.dtype, wide);
    const Tensor gh = allocate(scope.scratch, scope.dtype, wide);
    const Tensor statistics = final_norm_->allocate_statistics(scope, scope.scratch, tokens);
    final_norm_->forward(scope, x, {.values = h}, statistics);
    head_->loss_and_gradient(scope, h, batch.targets, total, gh);
    scope.stream.zero(g.data, g.bytes());
    final_norm_->backward(scope, gh, x, statistics, gy);
  };
  const Use backward = full ? Use::both : Use::backward;
  const auto block_passes = [&] {
    for (int layer = blocks; layer-- > 0;) {
      const auto i = static_cast<std::size_t>(layer);
      const nn::Operand gx = i > 0 ? gradient_of(i - 1) : nn::Operand{.values = g};
      const Need again = units_->more_follow() ? Need{embedding_unit_, Use::forward} : Need{};
      const Need next = layer > 0 ? block_need(layer - 1, backward) : again;
      units_->with(scope.scratch, block_need(layer, backward), next, [&] {
        const TraceRange range(scope.stream, concat("layer ", i, " backward"));
        const ArenaScope rebuilt(scope.stash);
        if (full) run_forward(recompute, blocks_[i], Tensor(saved[i].x), {}, saved[i], {});
        run_backward(scope, blocks_[i], gy, gx, saved[i]);
      });
      gy = gx;
    }
  };
  const auto embedding_pass = [&] { embedding_->backward(scope, batch.tokens, g); };
  if (head_unit_ == embedding_unit_) {  // one gradient, which the head begins and the embedding completes
    units_->with(scope.scratch, head_need, block_need(blocks - 1, backward), [&] {
      head_pass();
      block_passes();
      embedding_pass();
    });
  } else {
    units_->with(scope.scratch, head_need, block_need(blocks - 1, backward), head_pass);
    block_passes();
    units_->with(scope.scratch, {embedding_unit_, Use::gradients}, {}, embedding_pass);
  }
  units_->reduce_now(scope.scratch);
}

Tensor Decoder::hidden(const nn::Scope& scope, const Batch& batch) {
  const Shape wide{nn::share_of_tokens(scope, batch.tokens.rows()), config_.dim};
  Tensor x = allocate(scope.stash, scope.dtype, wide);
  Tensor y = allocate(scope.stash, scope.dtype, wide);
  const int blocks = static_cast<int>(blocks_.size());
  const auto block_need = [&](int i) { return i < blocks ? Need{first_block_unit_ + i} : Need{head_unit_}; };
  units_->with(scope.scratch, {embedding_unit_}, block_need(0), [&] { embedding_->forward(scope, batch.tokens, x); });
  for (int i = 0; i < blocks; ++i) {
    units_->with(scope.scratch, block_need(i), block_need(i + 1), [&] {
      const ArenaScope forgotten(scope.stash);
      BlockSaved unread;
      run_forward(scope, blocks_[static_cast<std::size_t>(i)], x, y, unread, {});
    });
    std::swap(x, y);
  }
  return x;
}

void Decoder::evaluate(const nn::Scope& outer, const Batch& batch, double* total) {
  const ArenaScope step(outer.stash);
  const nn::Scope scope = scope_of_evaluation(outer, batch);
  const Tensor x = hidden(scope, batch);
  const ArenaScope temporaries(scope.scratch);
  const Tensor h = allocate(scope.scratch, scope.dtype, x.shape);
  const Tensor statistics = final_norm_->allocate_statistics(scope, scope.scratch, x.rows());
  units_->with(scope.scratch, {head_unit_}, {}, [&] {
    final_norm_->forward(scope, x, {.values = h}, statistics);
    head_->loss(scope, h, batch.targets, total);
  });
}

void Decoder::logits(const nn::Scope& outer, const Batch& batch, const Tensor& logits) {
  const ArenaScope step(outer.stash);
  const nn::Scope scope = scope_of_evaluation(outer, batch);
  const Tensor x = hidden(scope, batch);
  const ArenaScope temporaries(scope.scratch);
  const Tensor h = allocate(scope.scratch, scope.dtype, x.shape);
  const Tensor statistics = final_norm_->allocate_statistics(scope, scope.scratch, x.rows());
  units_->with(scope.scratch, {head_unit_}, {}, [&] {
    final_norm_->forward(scope, x, {.values = h}, statistics);
    head_->logits(scope, h, logits);
  });
}

}  // namespace octet::models
