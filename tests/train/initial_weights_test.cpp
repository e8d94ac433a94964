// The spread of the numbers that training begins with.
#include <gtest/gtest.h>

#include <cmath>

#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

// The root mean square of n normal numbers differs from their deviation by about a fraction 1 / sqrt(2 n).
void expect_deviation(const parallel::Parameter& p, double deviation) {
  const std::vector<double> values = values_of(p.primary());
  double squares = 0;
  for (const double x : values) squares += x * x;
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(std::sqrt(squares / count), deviation, 5 * deviation / std::sqrt(2 * count)) << p.spec.name;
}

// As in GPT-2: each layer adds twice to the residual stream, so what is added is smaller by the root of twice the layers.
TEST(InitialWeights, OfLinearsThatWriteToTheResidualStreamAreSmaller) {
  train::EngineOptions options = tiny_options("fp32");
  options.model.layers = 8;
  options.model.init_std = 0.02;
  const auto engine = make_engine(options);
  int smaller = 0;
  for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
    if (p.spec.name.find("norm") != std::string::npos) continue;
    const bool writes = p.spec.name.find("o_proj") != std::string::npos || p.spec.name.find("down_proj") != std::string::npos;
    smaller += writes;
    expect_deviation(p, writes ? 0.02 / 4 : 0.02);
  }
  EXPECT_EQ(smaller, 16);
}

// PEFT draws A evenly from [-1 / sqrt(in), 1 / sqrt(in)] (kaiming_uniform_ with a = sqrt(5)), whose deviation is 1 / sqrt(3 in).
TEST(InitialWeights, OfAdaptersSpreadAsPeftsDo) {
  const auto engine = make_engine(adapted(tiny_options("fp32")));
  int adapters = 0;
  for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
    if (p.spec.frozen) continue;
    ++adapters;
    const bool is_a = p.spec.name.ends_with("lora_A.weight");
    expect_deviation(p, is_a ? 1 / std::sqrt(3.0 * static_cast<double>(p.spec.shape[1])) : 0.0);
  }
  EXPECT_EQ(adapters, 2 * 4 * 2) << "A and B of four linears in each of two layers";
}

}  // namespace
}  // namespace octet::testing
