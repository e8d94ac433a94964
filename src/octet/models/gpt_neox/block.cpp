#include "octet/models/gpt_neox/block.h"

namespace octet::models {
namespace {

std::string layer_name(std::int64_t layer) { return "gpt_neox.layers." + std::to_string(layer); }

}  // namespace

GptNeoxBlock::GptNeoxBlock(const DecoderConfig& c, std::int64_t layer, const Recipe& recipe, parallel::ParameterStore& store,
                           recipes::ScaleState& scales)
    : dim_(c.dim),
      parallel_(c.parallel_residual),
      norm1_(layer_name(layer) + ".input_layernorm", c.dim, c.norm_epsilon, store),
      attention_({.name = layer_name(layer) + ".attention",
                  .qkv = {"query_key_value"},
                  .output = "dense",
                  .dim = c.dim,
                  .heads = c.heads,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .rotary_dim = c.rotary_dim,
                  .bias = c.attention_bias,
                  .init_std = c.init_std,
                  .output_init_std = c.output_init_std()},
                 recipe, store, scales),
      norm2_(layer_name(layer) + ".post_attention_layernorm", c.dim, c.norm_epsilon, store),
      mlp_({.up = layer_name(layer) + ".mlp.dense_h_to_4h",
            .down = layer_name(layer) + ".mlp.dense_4h_to_h",
            .dim = c.dim,
            .ffn = c.ffn,
            .gelu = c.gelu.value(),
            .init_std = c.init_std,
            .output_init_std = c.output_init_std()},
           recipe, store, scales) {}

std::vector<nn::Linear*> GptNeoxBlock::linears() { return {&attention_.qkv(), &attention_.output(), &mlp_.up(), &mlp_.down()}; }

void GptNeoxBlock::forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y,
                           const std::function<void()>& amid_attention) {
  const Shape wide{x.rows(), dim_};
  Saved& saved = saved_;
  saved = {.x = x};
  saved.statistics1 = norm1_.allocate_statistics(scope, scope.stash, x.rows());
  if (!parallel_) saved.x1 = allocate(scope.stash, scope.dtype, wide);
  saved.statistics2 = norm2_.allocate_statistics(scope, scope.stash, x.rows());
  const ArenaScope until_summed(scope.scratch);
  // x + attention(h1): kept where backward reads it, and where they stand beside each other needed for y alone.
  const Tensor sum = !parallel_ ? saved.x1 : y ? allocate(scope.scratch, scope.dtype, wide) : Tensor{};
  if (parallel_) saved.x1 = x;
  {
    const ArenaScope temporaries(scope.scratch);
    const nn::LinearOperand h = attention_.input(scope, x.rows(), saved.attention);
    norm1_.forward(scope, x, h, saved.statistics1);
    attention_.forward(scope, rope_table, h, x, sum, saved.attention, amid_attention);
  }
  const nn::LinearOperand h = mlp_.input(scope, x.rows(), saved.mlp);
  norm2_.forward(scope, saved.x1, h, saved.statistics2);
  mlp_.forward(scope, h, y ? sum : x, y, saved.mlp);
}

void GptNeoxBlock::rebuild_attention(const nn::Scope& scope, std::int64_t tokens) {
  const nn::LinearOperand h = attention_.rebuild_input(scope, tokens);
  norm1_.forward(scope, saved_.x, h, saved_.statistics1);
  attention_.rebuild(scope, h, saved_.attention);
}

void GptNeoxBlock::rebuild_mlp(const nn::Scope& scope, std::int64_t tokens) {
  const nn::LinearOperand h = mlp_.rebuild_input(scope, tokens);
  norm2_.forward(scope, saved_.x1, h, saved_.statistics2);
  mlp_.rebuild(scope, h, saved_.mlp);
}

void GptNeoxBlock::backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy,
                            const nn::LinearOperand& gx, const std::function<void()>& amid_attention) {
  const std::int64_t tokens = gy.values.rows();
  const Shape wide{tokens, dim_};
  const bool rebuild = scope.checkpointing == nn::Checkpointing::selective;
  const ArenaScope temporaries(scope.scratch);
  const nn::WholeKv kv = attention_.gather_ahead(scope, saved_.attention);
  // Of x + attention(h1): one after another norm2 makes it; beside each other it is that of y, before a norm adds to its memory.
  nn::LinearOperand gsum = attention_.output().gradient(scope, gy.values);
  if (parallel_) gsum.codes = {};  // nobody makes it: the linear quantises it itself
  const Tensor gh2 = parallel_ ? allocate(scope.scratch, scope.dtype, wide) : Tensor{};
  {
    const ArenaScope of_mlp(scope.scratch);
    const Tensor gh = parallel_ ? gh2 : allocate(scope.scratch, scope.dtype, wide);
    if (rebuild) rebuild_mlp(scope, tokens);
    mlp_.backward(scope, gy, saved_.mlp, gh);
    if (!parallel_) norm2_.backward(scope, gh, saved_.x1, saved_.statistics2, gsum);
  }
  const Tensor gh1 = allocate(scope.scratch, scope.dtype, wide);
  if (rebuild) rebuild_attention(scope, tokens);
  attention_.backward(scope, rope_table, gsum, saved_.attention, kv, gh1, amid_attention);
  if (parallel_) norm2_.backward(scope, gh2, saved_.x, saved_.statistics2, {.values = gx.values});
  norm1_.backward(scope, gh1, saved_.x, saved_.statistics1, gx);
}

std::unique_ptr<Block> make_gpt_neox_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                           parallel::ParameterStore& store, recipes::ScaleState& scales) {
  return std::make_unique<GptNeoxBlock>(config, layer, recipe, store, scales);
}

}  // namespace octet::models
