// Measures how well FP8 codes represent their tensors and how large attention's logits are, for each layer of a sampled step.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/kernels/quantize/quantize.h"
#include "octet/nn/scope.h"
#include "octet/parallel/mesh.h"
#include "octet/telemetry/metrics.h"
#include "octet/tensor/host_tensor.h"
#include "octet/train/engine.h"

namespace octet::train {

// The names of a model's linears before and after SwiGLU.
struct GatedLinears {
  std::set<std::string, std::less<>> up;    // their weights are a gate and an up projection, one below the other
  std::set<std::string, std::less<>> down;  // their inputs are what SwiGLU makes of the two
};
GatedLinears gated_linears(const EngineOptions& options);

// Measures the FP8 operands and attention layers of the first micro-batch of a sampled step. Other steps have no cost.
class HealthWatch final : public nn::Watch {
 public:
  void operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) override;
  void set_gated(GatedLinears linears) { gated_ = std::move(linears); }
  void product(const nn::Scope&, std::string_view, std::string_view, const kernels::Gemm&) override {}
  void attention(const nn::Scope& scope, std::string_view layer, const Tensor& lse) override;
  // Also measures the weights of norms from now on.
  void watch_norms() { watches_norms_ = true; }
  void norm(const nn::Scope& scope, std::string_view name, const Tensor& weight) override;
  void rehearse(bool rehearses) override;

  // Return the samples since the last call. The stream must be synchronised first.
  std::vector<telemetry::HealthSample> take(std::int64_t step);
  std::vector<telemetry::AttentionSample> take_attention(std::int64_t step);

 private:
  // Whether to measure in this scope. Operands that a recompute makes again were measured before.
  bool measures(const nn::Scope& scope) const { return scope.record != nn::Record::nothing || (rehearses_ && !scope.rebuilds); }

  GatedLinears gated_;
  struct Sample {
    std::string tensor;
    std::array<float, kernels::kHealthValues> values{};  // in the order of kernels::QuantizeHealth
    std::vector<float> cosines;                          // of the channels of a gated layer's weight
    std::vector<float> amaxes;                           // of the channels of SwiGLU's output
  };
  std::deque<Sample> samples_;  // a deque, because copies to the samples may be running and their addresses must not change
  std::vector<std::pair<std::string, HostTensor>> lse_;  // by layer
  bool watches_norms_ = false, rehearses_ = false;
  std::vector<std::pair<std::string, HostTensor>> norms_;  // weights, by norm
};

// Returns the percentage of weights at the edge of the binade of their block. The largest of 32 consecutive weights has the
// binade [2^e, 2^(e+1)). Weights from 1.6875 · 2^e on become the largest code of E4M3, 1.75 · 2^e, if the block is scaled by
// 2^(8 - e) as the MX specification says. Octet itself rounds scales the other way, so that nothing is clamped, and keeps norms
// in BF16.
double edge_pct(std::span<const double> weights);

// Returns the per cent of the sum of all channels' amaxes that the channel with the largest one holds. NaN if there are no amaxes
// above zero, or one is infinite.
double top_channel_pct(std::span<const float> amaxes);

// Returns the linears that anomaly.remedy = "demote" puts into BF16 after such a sample, as patterns of precision.skip. The
// experts of a layer have one precision, so one bad expert moves all of them.
std::vector<std::string> linears_to_demote(const std::vector<telemetry::HealthSample>& samples);

// Warns if the first rank, which writes the samples, does not hold all layers.
void warn_of_hidden_layers(const parallel::Mesh& mesh);

}  // namespace octet::train
