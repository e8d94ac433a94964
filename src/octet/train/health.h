// How well FP8 codes represent what they stand for, per tensor of a sampled step.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "octet/nn/scope.h"
#include "octet/telemetry/metrics.h"

namespace octet::train {

// Measures every FP8 operand of the first micro-batch that it watches. An unwatched step pays nothing.
class HealthObserver final : public nn::LinearObserver {
 public:
  void operand(const nn::Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) override;
  bool wants_products(std::string_view) const override { return false; }
  void product(const nn::Scope&, std::string_view, std::string_view, const Tensor&) override {}

  // The samples since the last call; the queue must have been synchronised.
  std::vector<telemetry::HealthSample> take(std::int64_t step);

 private:
  struct Sample {
    std::string tensor;
    std::array<float, 5> values{};  // as kernels::QuantizeHealth writes them
  };
  std::deque<Sample> samples_;  // addresses stay: copies to them may be under way
};

}  // namespace octet::train
