#include "octet/models/decoder/block.h"

#include <cmath>

namespace octet::models {
namespace {

std::string layer_name(std::int64_t layer) { return "model.layers." + std::to_string(layer); }

// The linears that write to the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
double output_std(const DecoderConfig& c) { return c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers)); }

}  // namespace

Block::Block(const DecoderConfig& c, std::int64_t layer, const Recipe& recipe, parallel::ParameterStore& store,
             recipes::ScaleState& scales)
    : dim_(c.dim),
      norm1_(layer_name(layer) + ".input_layernorm", c.dim, c.norm_epsilon, store),
      attention_({.name = layer_name(layer) + ".self_attn",
                  .dim = c.dim,
                  .heads = c.heads,
                  .kv_heads = c.kv_heads,
                  .head_dim = c.head_dim,
                  .init_std = c.init_std,
                  .output_init_std = output_std(c)},
                 recipe, store, scales),
      norm2_(layer_name(layer) + ".post_attention_layernorm", c.dim, c.norm_epsilon, store),
      mlp_({.name = layer_name(layer) + ".mlp", .dim = c.dim, .ffn = c.ffn, .init_std = c.init_std, .output_init_std = output_std(c)},
           recipe, store, scales) {}

std::vector<nn::Linear*> Block::linears() { return {&attention_.qkv(), &attention_.output(), &mlp_.gate_up(), &mlp_.down()}; }

void Block::forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y, BlockSaved& saved) const {
  const Shape wide{x.rows(), dim_};
  const DType statistics = nn::statistics_dtype(scope.dtype);
  const bool keep = scope.checkpointing != nn::Checkpointing::selective;
  saved.x = x;
  saved.rstd1 = allocate(scope.stash, statistics, {x.rows()});
  saved.x1 = allocate(scope.stash, scope.dtype, wide);
  saved.rstd2 = allocate(scope.stash, statistics, {x.rows()});
  {
    const ArenaScope temporaries(scope.scratch);
    const Tensor h = allocate(keep && attention_.keeps_input() ? scope.stash : scope.scratch, scope.dtype, wide);
    norm1_.forward(scope, x, h, saved.rstd1);
    attention_.forward(scope, rope_table, h, x, saved.x1, saved.attention);
  }
  const ArenaScope temporaries(scope.scratch);
  const Tensor h = allocate(keep && mlp_.keeps_input() ? scope.stash : scope.scratch, scope.dtype, wide);
  norm2_.forward(scope, saved.x1, h, saved.rstd2);
  mlp_.forward(scope, h, saved.x1, y, saved.mlp);
}

void Block::backward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& g, BlockSaved& saved) const {
  const Shape wide{g.rows(), dim_};
  const bool rebuild = scope.checkpointing == nn::Checkpointing::selective;
  {
    const ArenaScope temporaries(scope.scratch);
    const Tensor gh = allocate(scope.scratch, scope.dtype, wide);
    if (rebuild) {
      const Tensor h = allocate(scope.scratch, scope.dtype, wide);
      norm2_.forward(scope, saved.x1, h, saved.rstd2);
      mlp_.rebuild(scope, h, saved.mlp);
    }
    mlp_.backward(scope, g, saved.mlp, gh);
    norm2_.backward(scope, gh, saved.x1, saved.rstd2, g);
  }
  const ArenaScope temporaries(scope.scratch);
  const Tensor gh = allocate(scope.scratch, scope.dtype, wide);
  if (rebuild) {
    const Tensor h = allocate(scope.scratch, scope.dtype, wide);
    norm1_.forward(scope, saved.x, h, saved.rstd1);
    attention_.rebuild(scope, h, saved.attention);
  }
  attention_.backward(scope, rope_table, g, saved.attention, gh);
  norm1_.backward(scope, gh, saved.x, saved.rstd1, g);
}

}  // namespace octet::models
