// The gradients of whole models, on any device.
#pragma once

#include <cmath>
#include <vector>

#include "octet/tensor/host_tensor.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {

// Of one micro-batch, of all parameters one after the other.
inline std::vector<double> gradients(train::Engine& engine, const Tokens& tokens) {
  engine.zero_gradients();
  engine.forward_backward(tokens.batch(), nullptr);
  std::vector<double> result;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    const std::vector<double> values = values_of(to_host(engine.queue(), p.grad).view());
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

// The norm of their difference.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

}  // namespace octet::testing
