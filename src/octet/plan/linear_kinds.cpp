#include "octet/plan/linear_kinds.h"

#include <algorithm>
#include <string_view>

#include "octet/base/names.h"
#include "octet/base/require.h"

namespace octet::plan {
namespace {

struct Role {
  std::string_view ending;  // of a linear's name
  const char* name;
  Producer x, g;
  bool residual;
};
// Block, Attention, Mlp and HeadLoss of nn/ and models/ say the same in arithmetic.
constexpr Role kRoles[] = {
    {".self_attn.q_proj.fused", "qkv", Producer::norm, Producer::rope_backward, false},
    {".self_attn.o_proj", "o", Producer::none, Producer::norm_backward, true},
    {".mlp.gate_proj.fused", "gate_up", Producer::norm, Producer::swiglu_backward, false},
    {".mlp.down_proj", "down", Producer::swiglu, Producer::norm_backward, true},
    {"lm_head", "head", Producer::none, Producer::none, false},
};

// "model.layers.3.mlp.down_proj" -> "model.layers.*.mlp.down_proj".
std::string pattern_of(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (name.rfind(kPrefix, 0) != 0) return name;
  return std::string(kPrefix) + "*" + name.substr(name.find('.', kPrefix.size()));
}

}  // namespace

std::vector<LinearKind> linear_kinds(models::Decoder& model) {
  std::vector<LinearKind> kinds;
  for (const nn::Linear* linear : model.linears()) {
    const std::string pattern = pattern_of(linear->name());
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const LinearKind& kind) { return kind.pattern == pattern; });
    if (known != kinds.end()) {
      ++known->layers;
      continue;
    }
    const auto role =
        std::find_if(std::begin(kRoles), std::end(kRoles), [&](const Role& r) { return pattern.ends_with(r.ending); });
    require(role != std::end(kRoles), "plan: no kind for linear ", linear->name());
    const Shape shape = linear->weight().cut.global();
    kinds.push_back({.name = role->name,
                     .pattern = pattern,
                     .out = shape[0],
                     .in = shape[1],
                     .layers = 1,
                     .x = role->x,
                     .g = role->g,
                     .residual = role->residual,
                     .quantisable = shape[0] % 16 == 0 && shape[1] % 16 == 0});
  }
  return kinds;
}

std::vector<std::int64_t> fp8_layers(models::Decoder& model, const std::vector<LinearKind>& kinds) {
  std::vector<std::int64_t> result(kinds.size());
  for (const nn::Linear* linear : model.linears()) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (linear->is_fp8() && glob_match(kinds[i].pattern, linear->name())) ++result[i];
    }
  }
  return result;
}

}  // namespace octet::plan
