#include "octet/models/decoder/pre_norm_block.h"

namespace octet::models {
namespace {

std::string layer_name(std::int64_t layer) { return "model.layers." + std::to_string(layer); }

}  // namespace

template <class FeedForward>
PreNormBlock<FeedForward>::PreNormBlock(const DecoderConfig& c, std::int64_t layer,
                                        const typename FeedForward::Options& feed_forward, const Recipe& recipe,
                                        parallel::ParameterStore& store, recipes::ScaleState& scales)
    : dim_(c.dim),
      norm1_(layer_name(layer) + ".input_layernorm", c.dim, c.norm_epsilon, store),
      attention_({.name = layer_name(layer) + ".self_attn",
                  .dim = c.dim,
                  .heads = c.heads,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .window = c.sliding_window,
                  .init_std = c.init_std,
                  .output_init_std = c.output_init_std()},
                 recipe, store, scales),
      norm2_(layer_name(layer) + ".post_attention_layernorm", c.dim, c.norm_epsilon, store),
      feed_forward_(feed_forward, recipe, store, scales) {}

template <class FeedForward>
std::vector<nn::Linear*> PreNormBlock<FeedForward>::linears() {
  std::vector<nn::Linear*> result = {&attention_.qkv(), &attention_.output()};
  const std::vector<nn::Linear*> rest = feed_forward_.linears();
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

template <class FeedForward>
void PreNormBlock<FeedForward>::forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y,
                                        const std::function<void()>& amid_attention) {
  const Shape wide{x.rows(), dim_};
  const DType statistics = nn::statistics_dtype(scope.dtype);
  Saved& saved = saved_;
  saved = {.x = x};
  saved.rstd1 = allocate(scope.stash, statistics, {x.rows()});
  saved.x1 = allocate(scope.stash, scope.dtype, wide);
  saved.rstd2 = allocate(scope.stash, statistics, {x.rows()});
  {
    const ArenaScope temporaries(scope.scratch);
    const nn::LinearOperand h = attention_.input(scope, x.rows(), saved.attention);
    norm1_.forward(scope, x, h, saved.rstd1);
    attention_.forward(scope, rope_table, h, x, saved.x1, saved.attention, amid_attention);
  }
  const ArenaScope temporaries(scope.scratch);
  const nn::LinearOperand h = feed_forward_.input(scope, x.rows(), saved.feed_forward);
  norm2_.forward(scope, saved.x1, h, saved.rstd2);
  feed_forward_.forward(scope, h, saved.x1, y, saved.feed_forward);
}

template <class FeedForward>
void PreNormBlock<FeedForward>::backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy,
                            const nn::LinearOperand& gx, const std::function<void()>& amid_attention) {
  Saved& saved = saved_;
  const std::int64_t tokens = gy.values.rows();
  const Shape wide{tokens, dim_};
  const bool rebuild = scope.checkpointing == nn::Checkpointing::selective;
  const ArenaScope temporaries(scope.scratch);
  const nn::WholeKv kv = attention_.gather_ahead(scope, saved.attention);
  const nn::LinearOperand gx1 = attention_.output().gradient(scope, gy.values);
  {
    const ArenaScope of_feed_forward(scope.scratch);
    const Tensor gh = allocate(scope.scratch, scope.dtype, wide);
    if (rebuild) {
      const nn::LinearOperand h = feed_forward_.rebuild_input(scope, tokens);
      norm2_.forward(scope, saved.x1, h, saved.rstd2);
      feed_forward_.rebuild(scope, h, saved.feed_forward);
    }
    feed_forward_.backward(scope, gy, saved.feed_forward, gh);
    norm2_.backward(scope, gh, saved.x1, saved.rstd2, gx1);
  }
  const Tensor gh = allocate(scope.scratch, scope.dtype, wide);
  if (rebuild) {
    const nn::LinearOperand h = attention_.rebuild_input(scope, tokens);
    norm1_.forward(scope, saved.x, h, saved.rstd1);
    attention_.rebuild(scope, h, saved.attention);
  }
  attention_.backward(scope, rope_table, gx1, saved.attention, kv, gh, amid_attention);
  norm1_.backward(scope, gh, saved.x, saved.rstd1, gx);
}

std::unique_ptr<Block> make_pre_norm_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                           parallel::ParameterStore& store, recipes::ScaleState& scales) {
  const nn::Mlp::Options mlp{.name = layer_name(layer) + ".mlp",
                             .dim = config.dim,
                             .ffn = config.ffn,
                             .init_std = config.init_std,
                             .output_init_std = config.output_init_std()};
  return std::make_unique<PreNormBlock<nn::Mlp>>(config, layer, mlp, recipe, store, scales);
}

std::unique_ptr<Block> make_mixture_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                          parallel::ParameterStore& store, recipes::ScaleState& scales) {
  const auto layers = static_cast<double>(config.layers);
  const nn::Moe::Options moe{.name = layer_name(layer) + ".block_sparse_moe",
                             .dim = config.dim,
                             .ffn = config.ffn,
                             .experts = config.experts,
                             .top_k = config.experts_per_token,
                             .init_std = config.init_std,
                             .output_init_std = config.output_init_std(),
                             .balance = config.router_balance / layers,
                             .z = config.router_z / layers};
  return std::make_unique<PreNormBlock<nn::Moe>>(config, layer, moe, recipe, store, scales);
}

}  // namespace octet::models
