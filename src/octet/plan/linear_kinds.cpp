#include "octet/plan/linear_kinds.h"

#include <algorithm>
#include <array>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/models/decoder/names.h"

namespace octet::plan {
namespace {

struct Role {
  const char* name;
  Producer x, g;
  bool residual = false;
};

// The linears of a block in their order, then the head. This repeats what the blocks in models/ and Attention, Mlp and HeadLoss
// in nn/ do.
std::array<Role, 5> roles_of(const models::DecoderConfig& c) {
  using enum Producer;
  // The norm of heads comes between the rotation and the linear, and writes values.
  const bool rotates_last = !c.learned_positions && !c.head_norm;
  // With a parallel residual, attention's output linear has the same gradient as the feed-forward layer's. The norm writes its
  // codes only once, for the feed-forward layer, so this linear casts the gradient itself.
  const bool shares_gradient = c.parallel_residual;
  return {{{"qkv", norm, rotates_last ? rope_backward : none},
           {"o", none, shares_gradient ? none : norm_backward, true},
           {c.gelu ? "up" : "gate_up", norm, c.gelu ? gelu_backward : swiglu_backward},
           {"down", c.gelu ? gelu : swiglu, norm_backward, true},
           {"head", none, none}}};
}

}  // namespace

std::vector<LinearKind> linear_kinds(models::Decoder& model) {
  demand(model.config().experts == 0, ExitCode::config, "octet advise does not support mixtures of experts, and the model has ",
         model.config().experts, " experts. Use `octet compare` to measure recipes for this model");
  std::vector<LinearKind> kinds;
  const std::array<Role, 5> roles = roles_of(model.config());
  const std::vector<nn::LinearWeight*> linears = model.linears();
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const nn::LinearWeight* const linear = linears[i];
    const std::string pattern = models::kind_pattern(linear->name());
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const LinearKind& kind) { return kind.pattern == pattern; });
    if (known != kinds.end()) {
      ++known->layers;
      continue;
    }
    const Role& role = i + 1 == linears.size() ? roles.back() : roles[i % (roles.size() - 1)];
    const Shape shape = linear->weight().cut.global();
    const nn::Adapter* const adapter = linear->adapter();
    kinds.push_back({.name = role.name,
                     .pattern = pattern,
                     .out = shape[0],
                     .in = shape[1],
                     .layers = 1,
                     .x = role.x,
                     .g = role.g,
                     .residual = role.residual,
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
