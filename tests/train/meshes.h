// Models that are small enough for many ranks in threads, and meshes that share them.
#pragma once

#include "support/mesh_run.h"

namespace octet::testing {

using parallel::Axis;
using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

// The sizes are replicate, shard, context and tensor, then expert.
inline const Layout kAlone;
inline const std::vector<Layout> kContexts = {
    {.mesh = Mesh({1, 1, 2, 1})}, {.mesh = Mesh({1, 1, 4, 1})}, {.mesh = Mesh({2, 1, 2, 1})}};
inline const std::vector<Layout> kTensors = {
    {.mesh = Mesh({1, 1, 1, 2})},
    {.mesh = Mesh({1, 1, 1, 4})},
    {.mesh = Mesh({2, 1, 1, 2})},
    {.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 2, 2, 2})}};
inline const std::vector<Layout> kMixtures = {
    {.mesh = Mesh({1, 2, 1, 1})},
    {.mesh = Mesh({1, 2, 1, 1}, 2)},
    {.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 4, 1, 1}, 4), .weights = Weights::resharded, .gradients = Gradients::whole},
    {.mesh = Mesh({2, 2, 1, 1}, 2), .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 1, 2, 1})},
    {.mesh = Mesh({1, 2, 2, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 1, 1, 2})},
    {.mesh = Mesh({1, 2, 1, 2}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded}};
inline const std::vector<Layout> kGptNeox = {
    {.mesh = Mesh({2, 1, 1, 1})},
    {.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 1, 2, 1})},
    {.mesh = Mesh({1, 1, 1, 4})},
    {.mesh = Mesh({1, 2, 2, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded}};

inline train::EngineOptions context_options(const std::string& recipe) {
  train::EngineOptions options = tiny_options(recipe);
  options.recipe.amax_history_len = 4;
  return options;
}
// Four ranks share the two heads of keys and values. Each rank has 16 columns of every operand that FP8 quantises.
inline train::EngineOptions tensor_options(const std::string& recipe) {
  train::EngineOptions options = context_options(recipe);
  options.model.head_dim = 16;
  options.model.ffn = 64;
  return options;
}
inline train::EngineOptions mixture_options(const std::string& recipe) {
  train::EngineOptions options = context_options(recipe);
  options.model.family = "mixtral";
  options.model.ffn = 64;  // each half is a multiple of 16
  options.model.experts = 4;
  options.model.experts_per_token = 2;
  options.model.router_balance = 0.05;
  options.model.router_z = 0.01;
  return options;
}
inline train::EngineOptions gpt_neox_options(const std::string& recipe, bool parallel_residual) {
  train::EngineOptions options = context_options(recipe);
  options.model = tiny_gpt_neox_config(parallel_residual);
  options.model.head_dim = 16;
  options.model.rotary_dim = parallel_residual ? 4 : 16;
  options.model.ffn = 64;
  return options;
}
inline train::EngineOptions olmo2_options(const std::string& recipe) {
  train::EngineOptions options = context_options(recipe);
  options.model = tiny_olmo2_config();
  return options;
}
inline train::EngineOptions phi3_options(const std::string& recipe) {
  train::EngineOptions options = context_options(recipe);
  options.model = tiny_phi3_config();
  options.model.head_dim = 16;
  options.model.ffn = 64;
  return options;
}

}  // namespace octet::testing
