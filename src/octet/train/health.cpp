#include "octet/train/health.h"

#include <algorithm>
#include <cmath>

#include "octet/base/log.h"
#include "octet/kernels/channel_amaxes/channel_amaxes.h"
#include "octet/kernels/row_cosines/row_cosines.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/health_verdict.h"

namespace octet::train {

void HealthWatch::operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) {
  if (!measures(scope)) return;
  const ArenaScope temporaries(scope.scratch);
  const Tensor out = allocate(scope.scratch, DType::f32, {kernels::kHealthValues});
  kernels::quantize_health(scope.stream, scope.scratch, {.x = source, .q = q, .out = static_cast<float*>(out.data)});
  const bool gated = role == Role::weight && gated_.up.contains(linear);
  const Tensor cosines = gated ? allocate(scope.scratch, DType::f32, {source.rows() / 2}) : Tensor{};
  if (gated) kernels::row_cosines(scope.stream, {.x = source, .y = cosines});
  const bool of_swiglu = role == Role::activation && gated_.down.contains(linear);
  const Tensor amaxes = of_swiglu ? allocate(scope.scratch, DType::f32, {source.shape[1]}) : Tensor{};
  if (of_swiglu) kernels::channel_amaxes(scope.stream, {.x = source, .y = amaxes});
  if (scope.stream.kind() == DeviceKind::meta) return;  // only the memory of the measurement counts
  Sample& sample = samples_.emplace_back();
  sample.tensor = concat(linear, ".", role_letter(role));
  scope.stream.copy_to_host(sample.values.data(), out.data, out.bytes());
  const auto fetch = [&](std::vector<float>& to, const Tensor& from) {
    to.resize(static_cast<std::size_t>(from.elements()));
    scope.stream.copy_to_host(to.data(), from.data, from.bytes());
  };
  if (gated) fetch(sample.cosines, cosines);
  if (of_swiglu) fetch(sample.amaxes, amaxes);
}

void HealthWatch::attention(const nn::Scope& scope, std::string_view layer, const Tensor& lse) {
  if (!measures(scope) || scope.stream.kind() == DeviceKind::meta) return;
  auto& [name, values] = lse_.emplace_back(layer, HostTensor(lse.dtype, lse.shape));
  scope.stream.copy_to_host(values.data(), lse.data, lse.bytes());
}

void HealthWatch::norm(const nn::Scope& scope, std::string_view name, const Tensor& weight) {
  if (!watches_norms_ || !measures(scope) || scope.stream.kind() == DeviceKind::meta) return;
  auto& [of, values] = norms_.emplace_back(name, HostTensor(weight.dtype, weight.shape));
  scope.stream.copy_to_host(values.data(), weight.data, weight.bytes());
}

void HealthWatch::rehearse(bool rehearses) {
  rehearses_ = rehearses;
  if (rehearses) return;
  samples_.clear();
  lse_.clear();
  norms_.clear();
}

double edge_pct(std::span<const double> weights) {
  constexpr std::size_t kBlock = 32;
  std::size_t at_edge = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const std::span<const double> block = weights.subspan(begin, std::min(kBlock, weights.size() - begin));
    double largest = 0;
    for (const double w : block) largest = std::max(largest, std::abs(w));
    if (!(largest > 0) || std::isinf(largest)) continue;
    const double edge = 1.6875 * std::exp2(std::ilogb(largest));
    for (const double w : block) at_edge += std::abs(w) >= edge;
  }
  return weights.empty() ? 0.0 : 100.0 * static_cast<double>(at_edge) / static_cast<double>(weights.size());
}

double top_channel_pct(std::span<const float> amaxes) {
  double sum = 0, top = 0;
  for (const float amax : amaxes) {
    sum += static_cast<double>(amax);
    top = std::max(top, static_cast<double>(amax));
  }
  return 100 * top / sum;
}

std::vector<telemetry::HealthSample> HealthWatch::take(std::int64_t step) {
  std::vector<telemetry::HealthSample> result;
  for (const Sample& s : samples_) {
    result.push_back({.step = step,
                      .tensor = s.tensor,
                      .amax = s.values[0],
                      .scale = s.values[1],
                      .saturated_pct = 100.0 * static_cast<double>(s.values[2]),
                      .flushed_pct = 100.0 * static_cast<double>(s.values[3]),
                      .sqnr_db = s.values[4],
                      .kurtosis = s.values[5],
                      .amax_to_rms = s.values[6] > 0 ? static_cast<double>(s.values[0]) / s.values[6] : telemetry::kUnknown});
    if (!s.cosines.empty()) result.back().alignment = *std::max_element(s.cosines.begin(), s.cosines.end());
    if (!s.amaxes.empty()) result.back().top_channel_pct = top_channel_pct(s.amaxes);
  }
  samples_.clear();
  for (const auto& [name, weight] : norms_) {
    std::vector<double> values;
    visit_float(weight.dtype(), [&]<class T>() {
      const T* const from = weight.view().as<T>();
      for (std::int64_t i = 0; i < weight.shape().elements(); ++i)
        values.push_back(static_cast<double>(static_cast<Real<T>>(from[i])));
    });
    result.push_back({.step = step, .tensor = name + ".n", .edge_pct = edge_pct(values)});
  }
  norms_.clear();
  return result;
}

std::vector<telemetry::AttentionSample> HealthWatch::take_attention(std::int64_t step) {
  std::vector<telemetry::AttentionSample> result;
  for (const auto& of_layer : lse_) {
    const auto& values = of_layer.second;
    const auto add = [&]<class T>(const T* first) {
      const auto [low, high] = std::minmax_element(first, first + values.shape().elements());
      result.push_back({.step = step, .layer = of_layer.first, .lse_min = *low, .lse_max = *high});
    };
    if (values.dtype() == DType::f64) {
      add(values.view().as<double>());
    } else {
      add(values.view().as<float>());
    }
  }
  lse_.clear();
  return result;
}

GatedLinears gated_linears(const EngineOptions& options) {
  const models::DecoderConfig& config = options.model;
  GatedLinears gated;
  if (config.gelu) return gated;
  models::Decoder model(config, options.recipe);
  const std::vector<nn::LinearWeight*> linears = model.linears();
  std::size_t next = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    next += 2;  // of attention
    for (std::int64_t pair = config.is_mixture(layer) ? config.experts : 1; pair > 0; --pair, next += 2) {
      gated.up.insert(linears[next]->name());
      gated.down.insert(linears[next + 1]->name());
    }
  }
  return gated;
}

std::vector<std::string> linears_to_demote(const std::vector<telemetry::HealthSample>& samples) {
  std::vector<telemetry::HealthFinding> findings = telemetry::find_unhealthy(samples);
  // A spike of any cause saturates gradients for a step or two.
  std::erase_if(findings, [](const telemetry::HealthFinding& f) { return f.operand == 'g'; });
  std::vector<std::string> patterns;
  for (const std::string& linear : telemetry::layers_of(findings)) {
    const std::string pattern = recipes::skip_pattern(linear);
    if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
  }
  return patterns;
}

void warn_of_hidden_layers(const parallel::Mesh& mesh) {
  if (mesh.stages().count > 1)
    log_warning("FP8 health is that of the first pipeline stage's layers; metrics.health_freq = 0 takes no samples");
}

}  // namespace octet::train
