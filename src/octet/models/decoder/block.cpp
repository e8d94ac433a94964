#include "octet/models/decoder/block.h"

namespace octet::models {
namespace {

std::string block_name(const DecoderModules& modules, std::int64_t layer) { return concat(modules.blocks, ".", layer); }

}  // namespace

Block::Block(const DecoderConfig& c, const DecoderModules& modules, std::int64_t layer, const Recipe& recipe,
             parallel::ParameterStore& store, recipes::ScaleState& scales)
    : dim_(c.dim),
      parallel_(c.parallel_residual),
      norm1_(c.norm, block_name(modules, layer) + ".input_layernorm", c.dim, c.norm_epsilon, store),
      attention_({.name = concat(block_name(modules, layer), ".", modules.attention),
                  .qkv = modules.qkv,
                  .output = modules.output,
                  .dim = c.dim,
                  .heads = c.heads,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .window = c.sliding_window,
                  .rotary_dim = c.rotary_dim,
                  .bias = c.attention_bias,
                  .init_std = c.init_std,
                  .output_init_std = c.output_init_std()},
                 recipe, store, scales),
      norm2_(c.norm, block_name(modules, layer) + ".post_attention_layernorm", c.dim, c.norm_epsilon, store) {
  const std::string name = concat(block_name(modules, layer), ".", modules.feed_forward);
  if (c.experts > 0) {
    const auto layers = static_cast<double>(c.layers);
    moe_ = std::make_unique<nn::Moe>(nn::Moe::Options{.name = name,
                                                      .up = modules.up,
                                                      .down = modules.down,
                                                      .dim = c.dim,
                                                      .ffn = c.ffn,
                                                      .experts = c.experts,
                                                      .top_k = c.experts_per_token,
                                                      .init_std = c.init_std,
                                                      .output_init_std = c.output_init_std(),
                                                      .balance = c.router_balance / layers,
                                                      .z = c.router_z / layers},
                                     recipe, store, scales);
  } else {
    mlp_ = std::make_unique<nn::Mlp>(nn::Mlp::Options{.name = name,
                                                      .up = modules.up,
                                                      .down = modules.down,
                                                      .dim = c.dim,
                                                      .ffn = c.ffn,
                                                      .gelu = c.gelu,
                                                      .bias = c.gelu.has_value(),
                                                      .init_std = c.init_std,
                                                      .output_init_std = c.output_init_std()},
                                     recipe, store, scales);
  }
}

std::vector<nn::Linear*> Block::linears() {
  std::vector<nn::Linear*> result = {&attention_.qkv(), &attention_.output()};
  const std::vector<nn::Linear*> rest = moe_ ? moe_->linears() : mlp_->linears();
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

nn::Operand Block::output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const {
  return moe_ ? moe_->gradient(scope, g, memory) : mlp_->gradient(scope, g, memory);
}

void Block::forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y, BlockSaved& saved,
                    const std::function<void()>& amid_attention) const {
  const Shape wide{x.rows(), dim_};
  saved = {.x = x};
  saved.statistics1 = norm1_.allocate_statistics(scope, scope.stash, x.rows());
  saved.x1 = parallel_ ? x : allocate(scope.stash, scope.dtype, wide);
  saved.statistics2 = norm2_.allocate_statistics(scope, scope.stash, x.rows());
  const ArenaScope until_summed(scope.scratch);
  // x + attention(h1). Backward reads it unless the residual is parallel; then only y needs it.
  const Tensor sum = !parallel_ ? saved.x1 : y ? allocate(scope.scratch, scope.dtype, wide) : Tensor{};
  {
    const ArenaScope temporaries(scope.scratch);
    const nn::Operand h = attention_.input(scope, x.rows());
    norm1_.forward(scope, x, h, saved.statistics1);
    attention_.forward(scope, rope_table, h, x, sum, saved.attention, amid_attention);
  }
  with_feed_forward(saved, [&](const auto& layer, auto& of_layer) {
    const nn::Operand h = layer.input(scope, x.rows());
    norm2_.forward(scope, saved.x1, h, saved.statistics2);
    layer.forward(scope, h, sum ? sum : x, y, of_layer);
  });
}

void Block::backward(const nn::Scope& scope, const Tensor& rope_table, const nn::Operand& gy, const nn::Operand& gx,
                     BlockSaved& saved, const std::function<void()>& amid_attention) const {
  const std::int64_t tokens = gy.values.rows();
  const Shape wide{tokens, dim_};
  const bool rebuild = scope.checkpointing == nn::Checkpointing::selective;
  const nn::Scope again = nn::without_record(scope);
  const ArenaScope temporaries(scope.scratch);
  const nn::WholeKv kv = attention_.gather_ahead(scope, saved.attention);
  // The gradient of x + attention(h1). norm2 makes it; with a parallel residual it is that of y, before a norm adds to its
  // memory.
  nn::Operand gsum = attention_.output().g().gradient(scope, gy.values);
  if (parallel_) gsum.epilogue = {};  // it exists already, so the linear quantises it itself
  const Tensor gh2 = parallel_ ? allocate(scope.scratch, scope.dtype, wide) : Tensor{};
  with_feed_forward(saved, [&](const auto& layer, auto& of_layer) {
    const ArenaScope of_feed_forward(scope.scratch);
    const Tensor gh = parallel_ ? gh2 : allocate(scope.scratch, scope.dtype, wide);
    if (rebuild) {
      const nn::Operand h = layer.rebuild_input(again, tokens);
      norm2_.forward(again, saved.x1, h, saved.statistics2);
      layer.rebuild(again, h, of_layer);
    }
    layer.backward(scope, gy, of_layer, gh);
    if (!parallel_) norm2_.backward(scope, gh, saved.x1, saved.statistics2, gsum);
  });
  const Tensor gh1 = allocate(scope.scratch, scope.dtype, wide);
  if (rebuild) {
    const nn::Operand h = attention_.rebuild_input(again, tokens);
    norm1_.forward(again, saved.x, h, saved.statistics1);
    attention_.rebuild(again, h, saved.attention);
  }
  attention_.backward(scope, rope_table, gsum, saved.attention, kv, gh1, amid_attention);
  if (parallel_) norm2_.backward(scope, gh2, saved.x, saved.statistics2, {.values = gx.values});
  norm1_.backward(scope, gh1, saved.x, saved.statistics1, gx);
}

}  // namespace octet::models
