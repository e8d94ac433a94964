#include "octet/plan/linear_run.h"

#include <algorithm>

#include "octet/kernels/fill/fill.h"
#include "octet/kernels/gelu/gelu.h"
#include "octet/kernels/rope/rope.h"
#include "octet/kernels/swiglu/swiglu.h"

namespace octet::plan {
namespace {

// The recipe without its skip list, so that the linear has the recipe's precision.
Recipe everywhere(const Recipe& recipe) {
  Recipe result = recipe;
  result.skip.clear();
  return result;
}

}  // namespace

std::int64_t tokens_at_a_time(const LinearKind& kind, const LinearSetting& setting) {
  if (kind.name != "head") return setting.tokens();
  constexpr std::int64_t kLogits = std::int64_t{1} << 29;  // logits of a chunk of nn::HeadLoss on a GPU
  return std::min(setting.tokens(), std::max<std::int64_t>(128, kLogits / kind.out / 128 * 128));
}

LinearRun::LinearRun(Queue& queue, const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting, Capacity capacity)
    : queue_(queue),
      kind_(kind),
      setting_(setting),
      tokens_(tokens_at_a_time(kind, setting)),
      scales_(recipe),
      linear_({.parts = {kind.name},
               .out = kind.out,
               .in = kind.in,
               .cut = {.along = kind.residual ? parallel::Cut::columns : parallel::Cut::rows},
               .bias = kind.bias},
              everywhere(recipe), parameters_, scales_),
      norm_x_(setting.model.norm, "x", kind.in, setting.model.norm_epsilon, parameters_),
      norm_g_(setting.model.norm, "g", kind.out, setting.model.norm_epsilon, parameters_),
      stash_(queue.device(), MemoryCategory::activations, capacity.stash),
      scratch_(queue.device(), MemoryCategory::workspace, capacity.scratch) {
  parameters_.materialise(queue.device(), setting.storage);
  parameters_.initialise(queue, 1);
  scales_.materialise(queue);
  linear_.bind();
  parameters_.refresh(queue, scratch_);

  Sources& s = sources_;
  s.x = random(DType::bf16, {tokens_, kind.x == Producer::swiglu ? 2 * kind.in : kind.in});
  s.gradient = random(DType::bf16, {tokens_, kind.out});
  s.y = allocate(stash_, DType::bf16, {tokens_, kind.out});
  s.gx = allocate(stash_, DType::bf16, {tokens_, kind.in});
  const nn::Scope scope = scope_of_run();
  s.statistics_x = filled(norm_x_.allocate_statistics(scope, stash_, tokens_));
  s.statistics_g = filled(norm_g_.allocate_statistics(scope, stash_, tokens_));
  if (kind.residual) s.residual = random(DType::bf16, {tokens_, kind.out});
  if (kind.g == Producer::norm_backward) s.g = random(DType::bf16, {tokens_, kind.out});
  if (kind.g == Producer::swiglu_backward) {
    s.g = random(DType::bf16, {tokens_, kind.out / 2});
    s.gate_up = random(DType::bf16, {tokens_, kind.out});
  }
  if (kind.g == Producer::gelu_backward) {
    s.g = random(DType::bf16, {tokens_, kind.out});
    s.gate_up = random(DType::bf16, {tokens_, kind.out});
  }
  if (kind.g == Producer::rope_backward) make_rope_table();
}

Tensor LinearRun::random(DType dtype, Shape shape) { return filled(allocate(stash_, dtype, shape)); }

Tensor LinearRun::filled(const Tensor& x) {
  kernels::fill_normal(queue_, {.x = x, .deviation = 1.0, .seed = 1, .subject = ++draws_});
  return x;
}

nn::Scope LinearRun::scope_of_run() {
  return {.queue = queue_, .stash = stash_, .scratch = scratch_, .context = *alone_, .tensor = *alone_, .expert = *alone_, .batch = setting_.batch};
}

void LinearRun::make_rope_table() {
  const models::DecoderConfig& model = setting_.model;
  const std::int64_t rotary_dim = model.rotary_dim == 0 ? model.head_dim : model.rotary_dim;
  const std::vector<float> table = kernels::rope_table(
      kernels::rope_inverse_frequencies(rotary_dim, model.rope_theta, model.rope_scaling), setting_.seq_len);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens_));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % setting_.seq_len);
  }
  sources_.table = allocate(stash_, DType::f32, {setting_.seq_len, rotary_dim});
  sources_.positions = allocate(stash_, DType::i32, {tokens_});
  queue_.copy_to_device(sources_.table.data, table.data(), sources_.table.bytes());
  queue_.copy_to_device(sources_.positions.data, positions.data(), sources_.positions.bytes());
  queue_.synchronize();
}

void LinearRun::micro_batch() {
  const ArenaScope kept(stash_);
  const ArenaScope temporaries(scratch_);
  const nn::Scope scope = scope_of_run();
  // The first micro-batch of a step overwrites the weight's gradient and the others add to it. With several micro-batches, this one
  // stands for the others.
  linear_.weight().grad_is_stale = setting_.micro_batches == 1;
  nn::LinearSaved saved;
  forward(scope, saved);
  backward(scope, saved);
}

void LinearRun::forward(const nn::Scope& scope, nn::LinearSaved& saved) {
  const Sources& s = sources_;
  if (kind_.x == Producer::none) {
    linear_.forward(scope, s.x, s.residual, s.y, &saved);
    return;
  }
  const nn::LinearOperand x = linear_.input(scope, tokens_, &saved);
  if (kind_.x == Producer::norm) {
    norm_x_.forward(scope, s.x, x, s.statistics_x);
  } else if (kind_.x == Producer::swiglu) {
    kernels::swiglu_forward(queue_, scratch_, {.gate_up = s.x, .y = x.values, .codes = x.codes});
  } else {
    kernels::gelu_forward(queue_, scratch_, {.kind = setting_.model.gelu.value(), .x = s.x, .y = x.values, .codes = x.codes});
  }
  linear_.forward(scope, x, s.residual, s.y, &saved);
}

void LinearRun::backward(const nn::Scope& scope, const nn::LinearSaved& saved) {
  const Sources& s = sources_;
  if (kind_.g == Producer::none) {
    linear_.backward(scope, s.gradient, saved, s.gx);
    return;
  }
  const nn::LinearOperand g = linear_.gradient(scope, s.gradient);
  if (kind_.g == Producer::norm_backward) {
    norm_g_.backward(scope, s.g, s.residual, s.statistics_g, g);
  } else if (kind_.g == Producer::swiglu_backward) {
    kernels::swiglu_backward(queue_, scratch_, {.gate_up = s.gate_up, .gy = s.g, .ggate_up = g.values, .codes = g.codes});
  } else if (kind_.g == Producer::gelu_backward) {
    kernels::gelu_backward(
        queue_, scratch_,
        {.kind = setting_.model.gelu.value(), .x = s.gate_up, .gy = s.g, .gx = g.values, .codes = g.codes});
  } else {
    const models::DecoderConfig& model = setting_.model;
    kernels::rope(queue_, scratch_,
                  {.x = s.gradient,
                   .rotated = (model.heads + model.kv_heads) * model.head_dim,
                   .head_dim = model.head_dim,
                   .rotary_dim = model.rotary_dim,
                   .table = s.table,
                   .positions = s.positions,
                   .direction = kernels::Rope::Direction::backward,
                   .codes = g.codes});
  }
  linear_.backward(scope, g, saved, s.gx);
}

void LinearRun::cast_weight() { parameters_.refresh_codes(queue_, scratch_, parameters_.all_units()); }

void LinearRun::update_scales() { scales_.update(queue_, nullptr); }

LinearOps count_linear(const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting) {
  const auto device = make_meta_device(DeviceKind::cuda);
  const auto queue = device->make_queue();
  LinearRun run(*queue, kind, recipe, setting, {});
  LinearOps ops;
  queue->start_profile();
  run.micro_batch();
  ops.micro_batch = queue->take_profile();
  queue->start_profile();
  run.cast_weight();
  ops.weight = queue->take_profile();
  ops.capacity = run.used();
  return ops;
}

}  // namespace octet::plan
