#include "octet/models/decoder/block.h"

namespace octet::models {

using parallel::Beside;
using parallel::StreamId;

namespace {

std::string block_name(const DecoderModules& modules, std::int64_t layer) { return concat(modules.blocks, ".", layer); }

}  // namespace

Block::Block(const DecoderConfig& c, const DecoderModules& modules, std::int64_t layer, const Recipe& recipe,
             parallel::ParameterStore& store, recipes::ScaleState& scales)
    : dim_(c.dim),
      parallel_(c.parallel_residual),
      branch1_(c, block_name(modules, layer), modules.attention_norms, store),
      attention_({.name = concat(block_name(modules, layer), ".", modules.attention),
                  .qkv = modules.qkv,
                  .output = modules.output,
                  .dim = c.dim,
                  .heads = c.heads,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .window = c.window(layer),
                  .rotary = !c.learned_positions,
                  .rotary_dim = c.rotary_dim,
                  .scale = c.attention_scale,
                  .qkv_bias = c.qkv_bias,
                  .output_bias = c.output_bias,
                  .qk_norm = c.qk_norm,
                  .norm_epsilon = c.norm_epsilon,
                  .init_std = c.init_std,
                  .output_init_std = c.output_init_std()},
                 recipe, store, scales),
      branch2_(c, block_name(modules, layer), modules.feed_forward_norms, store) {
  require(!parallel_ || !(branch1_.has_after() || branch2_.has_after()), c.family,
          ": a norm after a layer of a parallel residual");
  nn::Mlp::Options feed{.name = concat(block_name(modules, layer), ".", modules.feed_forward),
                        .up = modules.up,
                        .down = modules.down,
                        .dim = c.dim,
                        .ffn = c.ffn,
                        .init_std = c.init_std,
                        .output_init_std = c.output_init_std()};
  if (c.is_mixture(layer)) {
    feed.ffn = c.ffn_of_expert();
    feed.experts = c.experts;
    const auto layers = static_cast<double>(c.mixtures());
    moe_ = std::make_unique<nn::Moe>(nn::Moe::Options{.mlp = feed,
                                                      .top_k = c.experts_per_token,
                                                      .normalise = c.router_normalise,
                                                      .balance = c.router_balance / layers,
                                                      .z = c.router_z / layers,
                                                      .bias_rate = c.router_bias_rate,
                                                      .number = c.mixtures_before(layer)},
                                     recipe, store, scales);
  } else {
    feed.gelu = c.gelu;
    feed.bias = c.mlp_bias;
    mlp_ = std::make_unique<nn::Mlp>(feed, recipe, store, scales);
  }
}

std::vector<nn::LinearWeight*> Block::linears() {
  std::vector<nn::LinearWeight*> result = {&attention_.qkv().weights()[0], &attention_.output().weights().front()};
  const std::vector<nn::LinearWeight*> rest = feed().linears();
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

std::vector<LinearUse> Block::uses() {
  using enum Producer;
  const auto input = [](const Branch& branch) { return branch.has_before() ? norm : none; };
  // The norm after a layer makes the gradient of the layer's output. Without one, the norm before the next layer does.
  const auto gradient = [](const Branch& branch, bool next) { return branch.has_after() || next ? norm_backward : none; };
  // With a parallel residual, attention's output has the same gradient as the feed-forward layer's, for which the codes are made.
  const bool next_of_attention = branch2_.has_before() && !parallel_;
  std::vector<LinearUse> uses = {
      {&attention_.qkv().weights()[0], "qkv", input(branch1_), attention_.rope_writes_gradient() ? rope_backward : none},
      {&attention_.output().weights()[0], "o", none, gradient(branch1_, next_of_attention), !branch1_.has_after()}};
  nn::LinearWeight* const up = &feed().up().weights()[0];
  nn::LinearWeight* const down = &feed().down().weights()[0];
  if (moe_) {
    // Rows are copied to the experts and back as values, and the copy back adds the residual.
    uses.push_back({up, "experts.gate_up", none, swiglu_backward});
    uses.push_back({down, "experts.down", swiglu, none});
  } else if (mlp_->is_gated()) {
    uses.push_back({up, "gate_up", input(branch2_), swiglu_backward});
    uses.push_back({down, "down", swiglu, gradient(branch2_, branch1_.has_before()), !branch2_.has_after()});
  } else {
    uses.push_back({up, "up", input(branch2_), gelu_backward});
    uses.push_back({down, "down", gelu, gradient(branch2_, branch1_.has_before()), !branch2_.has_after()});
  }
  return uses;
}

void Block::serve_adapters() {
  for (nn::Linear* linear : {&attention_.qkv(), &attention_.output(), &feed().up(), &feed().down()}) linear->serve_adapters();
}

nn::Operand Block::output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const {
  // A mixture reads values: it quantizes the rows that it sends to experts.
  return branch2_.sum_gradient(scope, moe_ ? nullptr : &mlp_->down().g(), g, memory);
}

template <auto kPart>
void Block::of_mixture(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  ((*moe_).*kPart)(scope, saved.moe, work.moe);
}

template <auto kPart>
void Block::of_attention(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  (attention_.*kPart)(scope, saved.attention, work.attention);
}

// Keys and parameters use the same links. Attention waits for the keys, so they come first.
parallel::StepShape::BlockParts Block::lay_out(bool context, bool lanes) {
  const StreamId rows = lanes ? StreamId::experts : StreamId::compute;
  forward_ = {{{"qkv"}, &Block::qkv}};
  if (context) forward_.push_back({{"keys"}, &Block::keys});
  forward_.push_back({{"attention", context ? Beside::gather : Beside::nothing}, &Block::attention});
  if (moe_) {
    forward_.insert(forward_.end(), {{{"route"}, &Block::route},
                                     {{"dispatch", Beside::nothing, rows}, &Block::of_mixture<&nn::Moe::dispatch>},
                                     {{"experts"}, &Block::experts},
                                     {{"collect", Beside::nothing, rows}, &Block::of_mixture<&nn::Moe::collect>},
                                     {{"combine"}, &Block::combine}});
  } else {
    forward_.push_back({{"feed"}, &Block::feed_forward});
  }

  backward_.clear();
  const parallel::Part keys{.name = "keys", .stream = StreamId::params, .keys = true, .rest = false, .after_compute = true};
  if (context) backward_.push_back({keys, &Block::of_attention<&nn::Attention::gather_keys_ahead>});
  if (moe_) {
    backward_.insert(backward_.end(), {{{"combine"}, &Block::combine_backward},
                                       {{"dispatch", Beside::nothing, rows}, &Block::of_mixture<&nn::Moe::dispatch_gradients>},
                                       {{"experts"}, &Block::of_mixture<&nn::Moe::experts_backward>},
                                       {{"collect", Beside::nothing, rows}, &Block::of_mixture<&nn::Moe::collect_gradients>},
                                       {{"route"}, &Block::route_backward}});
  } else {
    backward_.push_back({{"feed"}, &Block::feed_backward});
  }
  backward_.push_back({{"output"}, &Block::output_backward});
  if (!context) backward_.push_back({{"output_wgrad"}, &Block::of_attention<&nn::Attention::backward_output_wgrad>});
  backward_.push_back({{"attention", Beside::reduce}, &Block::of_attention<&nn::Attention::backward_attention>});
  if (context) {  // the output linear's wgrad hides the sums of the gradients of keys
    backward_.insert(backward_.end(),
                     {{{.name = "attention_rest", .keys = true}, &Block::of_attention<&nn::Attention::backward_attention_rest>},
                      {{.name = "key_sums", .stream = StreamId::context, .keys = true, .rest = false},
                       &Block::of_attention<&nn::Attention::sum_key_gradients>},
                      {{"output_wgrad"}, &Block::of_attention<&nn::Attention::backward_output_wgrad>}});
  }
  backward_.push_back({{.name = "qkv", .keys = context}, &Block::qkv_backward});

  parallel::StepShape::BlockParts parts;
  for (const auto& part : forward_) parts.forward.push_back(part.part);
  for (const auto& part : backward_) parts.backward.push_back(part.part);
  return parts;
}

void Block::qkv(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  const Shape wide{work.x.rows(), dim_};
  saved = {.x = work.x};
  saved.branch1 = branch1_.allocate(scope, wide);
  saved.x1 = parallel_ ? work.x : allocate(scope.stash, scope.dtype, wide);
  saved.branch2 = branch2_.allocate(scope, wide);
  // Backward reads the sum, unless the residual is parallel; then only y needs it.
  work.sum = !parallel_ ? saved.x1 : work.y ? allocate(scope.scratch, scope.dtype, wide) : Tensor{};
  const ArenaScope temporaries(scope.scratch);
  attention_.forward_qkv(scope, branch1_.input(scope, attention_, work.x, saved.branch1), saved.attention);
}

void Block::keys(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  work.keys_mark = scope.scratch.used();
  work.keys = attention_.gather_keys(scope, saved.attention);
}

void Block::attention(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  attention_.forward_attention(scope, work.keys, saved.attention);
  if (work.keys) scope.scratch.release_to(work.keys_mark);
  if (!work.sum) return;
  branch1_.add(scope, work.x, work.sum, saved.branch1,
               [&](const Tensor& residual, const Tensor& y) { attention_.forward_output(scope, residual, y, saved.attention); });
}

void Block::feed_forward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  const nn::Operand h = branch2_.input(scope, *mlp_, saved.x1, saved.branch2);
  branch2_.add(scope, work.sum ? work.sum : work.x, work.y, saved.branch2,
               [&](const Tensor& residual, const Tensor& y) { mlp_->forward(scope, h, residual, y, saved.mlp); });
}

void Block::route(const nn::Scope& scope, BlockSaved& saved, BlockWork&) const {
  moe_->route(scope, branch2_.input(scope, *moe_, saved.x1, saved.branch2), saved.moe);
}

void Block::experts(const nn::Scope& scope, BlockSaved& saved, BlockWork&) const { moe_->experts(scope, saved.moe); }

void Block::combine(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  branch2_.add(scope, work.sum ? work.sum : work.x, work.y, saved.branch2,
               [&](const Tensor& residual, const Tensor& y) { moe_->combine(scope, residual, y, saved.moe); });
}

void Block::begin_feed_backward(const nn::Scope& scope, BlockWork& work) const {
  // The branch of the feed-forward layer writes the gradient of x + a(x). With a parallel residual it equals gy, and the linear
  // must read it before a norm adds to that memory.
  work.gsum = branch1_.sum_gradient(scope, &attention_.output().g(), work.gy.values);
  if (!parallel_) return;
  work.gsum.epilogue = {};  // the values exist already, so the linear quantizes them itself
  work.gh2 = allocate(scope.scratch, scope.dtype, work.gy.values.shape);
}

void Block::feed_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  begin_feed_backward(scope, work);
  const ArenaScope temporaries(scope.scratch);
  const Tensor gh = parallel_ ? work.gh2 : allocate(scope.scratch, scope.dtype, work.gy.values.shape);
  if (scope.checkpointing == nn::Checkpointing::selective) {
    const nn::Scope again = nn::rebuild_scope(scope);
    nn::Operand h;
    if (mlp_->keeps_input()) h = branch2_.input(again, *mlp_, saved.x1, saved.branch2);
    mlp_->rebuild(again, h, saved.mlp);
  }
  mlp_->backward(scope, branch2_.output_gradient(scope, &mlp_->down().g(), work.gy, saved.branch2), saved.mlp, gh);
  if (!parallel_) branch2_.input_gradient(scope, gh, saved.x1, saved.branch2, work.gsum);
}

void Block::combine_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  begin_feed_backward(scope, work);
  work.moe_mark = scope.scratch.used();
  if (!parallel_) work.gh2 = allocate(scope.scratch, scope.dtype, work.gy.values.shape);
  if (scope.checkpointing == nn::Checkpointing::selective) {
    const nn::Scope again = nn::without_record(scope);
    moe_->rebuild(again, branch2_.input(again, *moe_, saved.x1, saved.branch2), saved.moe);
  }
  moe_->combine_backward(scope, branch2_.output_gradient(scope, nullptr, work.gy, saved.branch2), saved.moe, work.moe);
}

void Block::route_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  moe_->route_backward(scope, saved.moe, work.moe, work.gh2);
  if (!parallel_) branch2_.input_gradient(scope, work.gh2, saved.x1, saved.branch2, work.gsum);
  scope.scratch.release_to(work.moe_mark);
}

void Block::output_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  work.gh1 = allocate(scope.scratch, scope.dtype, work.gy.values.shape);
  if (scope.checkpointing == nn::Checkpointing::selective && attention_.keeps_input()) {
    const nn::Scope again = nn::rebuild_scope(scope);
    attention_.rebuild(again, branch1_.input(again, attention_, saved.x, saved.branch1), saved.attention);
  }
  work.attention_mark = scope.scratch.used();
  attention_.backward_output(scope, branch1_.output_gradient(scope, &attention_.output().g(), work.gsum, saved.branch1),
                             work.attention);
}

void Block::qkv_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
  attention_.backward_qkv(scope, saved.attention, work.attention, work.gh1);
  scope.scratch.release_to(work.attention_mark);
  if (parallel_) branch2_.input_gradient(scope, work.gh2, saved.x, saved.branch2, {.values = work.gx.values});
  branch1_.input_gradient(scope, work.gh1, saved.x, saved.branch1, work.gx);
}

}  // namespace octet::models
