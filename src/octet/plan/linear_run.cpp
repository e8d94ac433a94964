#include "octet/plan/linear_run.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "octet/base/math.h"
#include "octet/kernels/experts/experts.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/gelu/gelu.h"
#include "octet/kernels/rope/rope.h"
#include "octet/kernels/swiglu/swiglu.h"
#include "octet/nn/head_loss.h"
#include "octet/nn/sequence.h"

namespace octet::plan {
namespace {

// The recipe without its skip list, so that the linear has the recipe's precision.
Recipe everywhere(const Recipe& recipe) {
  Recipe result = recipe;
  result.skip.clear();
  return result;
}

parallel::ParameterStore store_of(const LinearKind& kind) {
  parallel::ParameterStore store;
  store.set_frozen(kind.frozen);
  return store;
}

std::int64_t expert_rows(const LinearSetting& setting) { return setting.tokens() * setting.model.experts_per_token; }

std::int64_t rows_of(const LinearKind& kind, const LinearSetting& setting) {
  return kind.experts > 0 ? grouped_rows(expert_rows(setting), kind.experts) : tokens_at_a_time(kind, setting);
}

nn::Linear make_linear(const LinearKind& kind, const Recipe& recipe, parallel::ParameterStore& store,
                       recipes::ScaleState& scales) {
  nn::Linear::Options options{
      .parts = {kind.name}, .out = kind.out, .in = kind.in, .cut = {.along = kind.cut}, .bias = kind.bias};
  if (kind.experts == 0) return {options, recipe, store, scales};
  std::vector<nn::LinearWeight> weights;
  for (std::int64_t e = 0; e < kind.experts; ++e) {
    options.parts = {concat(kind.name, ".", e)};
    options.expert = {e, kind.experts};
    weights.emplace_back(options, recipe, store, scales);
  }
  return {std::move(weights), {}, recipe, scales};
}

}  // namespace

std::int64_t tokens_at_a_time(const LinearKind& kind, const LinearSetting& setting) {
  if (kind.name != "head") return setting.tokens();
  return std::min(setting.tokens(), nn::head_chunk_tokens(DeviceKind::cuda, kind.out));
}

LinearRun::LinearRun(Stream& stream, const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting,
                     Capacity capacity)
    : stream_(stream),
      kind_(kind),
      setting_(setting),
      tokens_(rows_of(kind, setting)),
      parameters_(store_of(kind)),
      scales_(recipe),
      linear_(make_linear(kind, everywhere(recipe), parameters_, scales_)),
      norm_x_(setting.model.norm, "x", kind.in, setting.model.norm_epsilon, parameters_),
      norm_g_(setting.model.norm, "g", kind.out, setting.model.norm_epsilon, parameters_),
      stash_(stream.device(), MemoryCategory::activations, capacity.stash),
      scratch_(stream.device(), MemoryCategory::workspace, capacity.scratch) {
  parameters_.set_frozen(false);
  if (kind.adapter_rank > 0) {
    for (nn::LinearWeight& weight : linear_.weights()) weight.adapt({.parts = {0}, .rank = kind.adapter_rank}, parameters_);
    linear_.serve_adapters();
  }
  parameters_.materialise(stream.device(), setting.storage);
  for (parallel::Parameter& p : parameters_.parameters())
    parameters_.fill(stream, scratch_, p, [&] { parameters_.initialise(stream, p, 1); });
  scales_.materialise(stream);
  for (nn::LinearWeight& weight : linear_.weights()) weight.bind();
  parameters_.prepare_codes(stream.device(), parameters_.all_units());
  parameters_.refresh(stream, scratch_);
  if (kind.experts > 0) share_rows();

  Sources& s = sources_;
  s.x = random(DType::bf16, {tokens_, kind.x == Producer::swiglu ? 2 * kind.in : kind.in});
  s.gradient = random(DType::bf16, {tokens_, kind.out});
  s.y = allocate(stash_, DType::bf16, {tokens_, kind.out});
  s.gx = allocate(stash_, DType::bf16, {tokens_, kind.in});
  const nn::Scope scope = scope_of_run();
  s.statistics_x = filled(norm_x_.allocate_statistics(scope, stash_, tokens_));
  s.statistics_g = filled(norm_g_.allocate_statistics(scope, stash_, tokens_));
  if (kind.residual) s.residual = random(DType::bf16, {tokens_, kind.out});
  if (kind.g == Producer::norm_backward) {
    s.g = random(DType::bf16, {tokens_, kind.out});
    s.normed = kind.residual ? s.residual : random(DType::bf16, {tokens_, kind.out});
  }
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

void LinearRun::share_rows() {
  const std::int64_t experts = kind_.experts, rows = expert_rows(setting_);
  groups_ = allocate_groups(stash_, experts, tokens_, rows);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(experts), static_cast<std::int32_t>(rows / experts));
  for (std::int64_t e = 0; e < rows % experts; ++e) ++counts[static_cast<std::size_t>(e)];
  stream_.copy_to_device(groups_.counts.data, counts.data(), groups_.counts.bytes());
  kernels::group_rows(stream_, {groups_});
  stream_.synchronize();
}

// A tensor of rows of experts has zeros after the rows of each.
Tensor LinearRun::random(DType dtype, Shape shape) {
  const Tensor x = filled(allocate(stash_, dtype, shape));
  if (groups_) kernels::clear_gaps(stream_, {groups_, x});
  return x;
}

Tensor LinearRun::filled(const Tensor& x) {
  kernels::fill_normal(stream_, {.x = x, .deviation = 1.0, .seed = 1, .subject = ++draws_});
  return x;
}

nn::Scope LinearRun::scope_of_run() {
  return {.stream = stream_,
          .stash = stash_,
          .scratch = scratch_,
          .context = *alone_,
          .tensor = *alone_,
          .expert = *alone_,
          .batch = setting_.batch,
          .groups = groups_ ? &groups_ : nullptr};
}

void LinearRun::make_rope_table() {
  const models::DecoderConfig& model = setting_.model;
  const std::vector<float> table =
      kernels::rope_table(model.rotated_dims(), model.rope_theta, model.rope_scaling, setting_.seq_len);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens_));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % setting_.seq_len);
  }
  sources_.table = allocate(stash_, DType::f32, {setting_.seq_len, model.rotated_dims()});
  sources_.positions = allocate(stash_, DType::i32, {tokens_});
  stream_.copy_to_device(sources_.table.data, table.data(), sources_.table.bytes());
  stream_.copy_to_device(sources_.positions.data, positions.data(), sources_.positions.bytes());
  stream_.synchronize();
}

void LinearRun::micro_batch() {
  const ArenaScope kept(stash_);
  const ArenaScope temporaries(scratch_);
  nn::Scope scope = scope_of_run();
  // The first micro-batch of a step overwrites the weight's gradient and the others add to it. With several micro-batches, this
  // one represents the others.
  if (setting_.micro_batches > 1) scope.overwrites = parallel::Overwrites::none;
  backward(scope, forward(scope));
}

nn::Operand LinearRun::forward(const nn::Scope& scope) {
  const Sources& s = sources_;
  constexpr auto kReads = nn::Reads::fprop_and_wgrad;
  nn::Operand x{.values = s.x};
  if (kind_.x != Producer::none) x = linear_.x().allocate(scope, tokens_, kReads);
  if (kind_.x == Producer::norm) {
    norm_x_.forward(scope, s.x, x, s.statistics_x);
  } else if (kind_.x == Producer::swiglu) {
    kernels::swiglu_forward(stream_, scratch_, {.gate_up = s.x, .y = x.values, .codes = x.epilogue});
  } else if (kind_.x == Producer::gelu) {
    kernels::gelu_forward(stream_, scratch_, {.kind = setting_.model.gelu.value(), .x = s.x, .y = x.values, .codes = x.epilogue});
  }
  return nn::linear_forward(scope, linear_, x, kReads, s.residual, s.y);
}

void LinearRun::backward(const nn::Scope& scope, const nn::Operand& x) {
  const Sources& s = sources_;
  nn::Operand g{.values = s.gradient};
  if (kind_.g != Producer::none) g = linear_.g().gradient(scope, s.gradient);
  if (kind_.g == Producer::norm_backward) {
    norm_g_.backward(scope, s.g, s.normed, s.statistics_g, g);
  } else if (kind_.g == Producer::swiglu_backward) {
    kernels::swiglu_backward(stream_, scratch_, {.gate_up = s.gate_up, .gy = s.g, .ggate_up = g.values, .codes = g.epilogue});
  } else if (kind_.g == Producer::gelu_backward) {
    kernels::gelu_backward(stream_, scratch_,
                           {.kind = setting_.model.gelu.value(), .x = s.gate_up, .gy = s.g, .gx = g.values, .codes = g.epilogue});
  } else if (kind_.g == Producer::rope_backward) {
    const models::DecoderConfig& model = setting_.model;
    kernels::rope(stream_, scratch_,
                  {.x = s.gradient,
                   .rotated = (model.heads + model.kv_heads) * model.head_dim,
                   .head_dim = model.head_dim,
                   .rotary_dim = model.rotary_dim,
                   .table = s.table,
                   .positions = s.positions,
                   .direction = kernels::Rope::Direction::backward,
                   .codes = g.epilogue});
  }
  nn::linear_backward(scope, linear_, g, x, s.gx);
}

void LinearRun::cast_weight() { parameters_.refresh_codes(stream_, scratch_, parameters_.all_units()); }

void LinearRun::update_scales() { scales_.update(stream_, nullptr); }

LinearOps count_linear(const LinearKind& kind, const Recipe& recipe, const LinearSetting& setting) {
  const auto device = make_meta_device(DeviceKind::cuda);
  const auto stream = device->make_stream();
  LinearRun run(*stream, kind, recipe, setting, {});
  LinearOps ops;
  stream->start_profile();
  run.micro_batch();
  ops.micro_batch = stream->take_profile();
  stream->start_profile();
  run.cast_weight();
  ops.weight = stream->take_profile();
  // One launch zeroes the recorded amaxes of all weights, so that its time is no linear's.
  std::erase_if(ops.weight, [](const OpTime& op) { return std::string_view(op.op) == "zero"; });
  ops.capacity = run.used();
  return ops;
}

}  // namespace octet::plan
