// Compares the gradients and the training of whole models on any device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "octet/tensor/host_tensor.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {

// Returns the gradients of one micro-batch for all trained parameters, one parameter after the other.
inline std::vector<double> gradients(train::Engine& engine, const Tokens& tokens) {
  engine.begin_step();
  engine.forward_backward(tokens.batch(), nullptr);
  std::vector<double> result;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (p.spec.frozen) continue;
    const std::vector<double> values = values_of(to_host(engine.stream(), p.grad).view());
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

// Returns the norm of a - b.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// Trains both engines for 20 steps on the same micro-batch. Expects that the loss falls, and that the engines' last losses differ
// by at most 5% of the fall.
inline void expect_to_learn_alike(train::Engine& cpu, train::Engine& gpu, const Tokens& tokens) {
  double loss[2] = {}, first = 0;
  for (std::uint32_t step = 1; step <= 20; ++step) {
    std::size_t i = 0;
    for (train::Engine* engine : {&cpu, &gpu}) {
      engine->begin_step();
      engine->forward_backward(tokens.batch(), nullptr);
      engine->apply(3e-3, step);
      const kernels::StepScalars scalars = engine->optimizer().read(engine->stream());
      loss[i++] = scalars.loss_sum / scalars.token_count;
      EXPECT_EQ(scalars.found_inf, 0.0f) << "step " << step;
    }
    if (step == 1) first = loss[0];
  }
  EXPECT_LT(loss[0], 0.8 * first);
  EXPECT_NEAR(loss[1], loss[0], 0.05 * (first - loss[0])) << "the loss fell by " << first - loss[0];
}

}  // namespace octet::testing
