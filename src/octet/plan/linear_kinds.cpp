#include "octet/plan/linear_kinds.h"

#include <algorithm>
#include <string_view>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/models/decoder/names.h"

namespace octet::plan {
namespace {

struct Role {
  std::string_view ending;  // how the linear's name ends
  const char* name;
  Producer x, g;
  bool residual;
};
// This table repeats what the blocks in models/ and Attention, Mlp and HeadLoss in nn/ do.
constexpr Role kRoles[] = {
    {".self_attn.q_proj.fused", "qkv", Producer::norm, Producer::rope_backward, false},
    {".self_attn.o_proj", "o", Producer::none, Producer::norm_backward, true},
    {".mlp.gate_proj.fused", "gate_up", Producer::norm, Producer::swiglu_backward, false},
    {".mlp.down_proj", "down", Producer::swiglu, Producer::norm_backward, true},
    {"lm_head", "head", Producer::none, Producer::none, false},
    {".attention.query_key_value", "qkv", Producer::norm, Producer::rope_backward, false},
    {".attention.dense", "o", Producer::none, Producer::norm_backward, true},
    {".mlp.dense_h_to_4h", "up", Producer::norm, Producer::gelu_backward, false},
    {".mlp.dense_4h_to_h", "down", Producer::gelu, Producer::norm_backward, true},
    {".attn.attention.q_proj.fused", "qkv", Producer::norm, Producer::none, false},
    {".attn.attention.out_proj", "o", Producer::none, Producer::norm_backward, true},
    {".mlp.c_fc", "up", Producer::norm, Producer::gelu_backward, false},
    {".mlp.c_proj", "down", Producer::gelu, Producer::norm_backward, true},
    {"embed_out", "head", Producer::none, Producer::none, false},
};

}  // namespace

std::vector<LinearKind> linear_kinds(models::Decoder& model) {
  demand(model.config().experts == 0, ExitCode::config, "octet advise does not support mixtures of experts, and the model has ",
         model.config().experts, " experts. Use `octet compare` to measure recipes for this model");
  std::vector<LinearKind> kinds;
  for (const auto* linear : model.linears()) {
    const std::string pattern = models::kind_pattern(linear->name());
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const LinearKind& kind) { return kind.pattern == pattern; });
    if (known != kinds.end()) {
      ++known->layers;
      continue;
    }
    const auto role =
        std::find_if(std::begin(kRoles), std::end(kRoles), [&](const Role& r) { return pattern.ends_with(r.ending); });
    require(role != std::end(kRoles), "plan: no kind for linear ", linear->name());
    const Shape shape = linear->weight().cut.global();
    // With a parallel residual, attention's output linear has the same gradient as the feed-forward layer's. The norm writes its codes
    // only once, for the feed-forward layer, so this linear casts the gradient itself.
    const bool shares_gradient = model.config().parallel_residual && role->name == std::string_view("o");
    // The norm of heads comes between the rotation and the linear, and writes values.
    const bool normed = model.config().head_norm && role->name == std::string_view("qkv");
    const nn::Adapter* const adapter = linear->adapter();
    kinds.push_back({.name = role->name,
                     .pattern = pattern,
                     .out = shape[0],
                     .in = shape[1],
                     .layers = 1,
                     .x = role->x,
                     .g = shares_gradient || normed ? Producer::none : role->g,
                     .residual = role->residual,
                     .bias = linear->bias() != nullptr,
                     .frozen = linear->weight().spec.frozen,
                     .adapter_rank = adapter ? adapter->a().cut.global()[0] : 0,
                     .quantisable = shape[0] % 16 == 0 && shape[1] % 16 == 0});
  }
  return kinds;
}

std::vector<std::int64_t> fp8_layers(models::Decoder& model, const std::vector<LinearKind>& kinds,
                                     const std::vector<std::string>& except) {
  std::vector<std::int64_t> result(kinds.size());
  for (const auto* linear : model.linears()) {
    if (!linear->is_fp8() || std::find(except.begin(), except.end(), linear->name()) != except.end()) continue;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (glob_match(kinds[i].pattern, linear->name())) ++result[i];
    }
  }
  return result;
}

}  // namespace octet::plan
