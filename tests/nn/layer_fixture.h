// A fixture for the tests of single layers. It has a parameter store, scales, arenas and a scope, and compares derivatives with
// finite differences.
#pragma once

#include <string>
#include <vector>

#include "kernels/op_fixture.h"
#include "octet/nn/linear.h"
#include "octet/nn/scope.h"
#include "octet/nn/sequence.h"
#include "octet/parallel/parameter.h"
#include "octet/recipes/registry.h"
#include "octet/recipes/scaler.h"
#include "support/grad_check.h"

namespace octet::testing {

inline Recipe fp64_recipe() {
  Recipe recipe;
  recipe.name = "fp64";
  recipe.compute = Compute::fp64;
  return recipe;
}

class LayerTest : public OpTest {
 protected:
  // Call it before the layer is made.
  void use(const Recipe& of) {
    recipe = of;
    scales = std::make_unique<recipes::ScaleState>(of);
    parameters = std::make_unique<parallel::ParameterStore>();
  }
  // Call it after the layer is made. Gives it random parameters, their codes, and gradients of zero.
  void materialise(const std::vector<nn::LinearWeight*>& linears, DType grad = DType::f32) {
    const bool f64 = recipe.compute == Compute::fp64;
    parameters->materialise(*device, {.compute = dtype(), .grad = f64 ? DType::f64 : grad, .moments = DType::f32});
    scales->materialise(*stream);
    for (nn::LinearWeight* linear : linears) linear->bind();
    parameters->initialise(*stream, 3);
    parameters->refresh(*stream, scratch);
    parameters->zero_gradients(*stream);
  }
  DType dtype() const {
    return recipe.compute == Compute::fp64 ? DType::f64 : recipe.compute == Compute::fp32 ? DType::f32 : DType::bf16;
  }
  nn::Scope scope() {
    return {.stream = *stream,
            .stash = stash,
            .scratch = scratch,
            .dtype = dtype(),
            .context = *alone,
            .tensor = *alone,
            .expert = *alone};
  }

  // Does what the producer of an operand does: writes x, or its codes if the operand has codes.
  nn::Operand made(const nn::Operand& operand, const Tensor& x) {
    if (operand.epilogue) kernels::quantize(*stream, scratch, operand.epilogue.of(x));
    if (!operand.epilogue) stream->copy(operand.values.data, x.data, x.bytes());
    return operand;
  }

  // Overwrites y with linear(x) + residual, as a block does, and returns what wgrad reads of x.
  static nn::Operand linear_forward(const nn::Linear& linear, const nn::Scope& s, const nn::Operand& operand,
                                    const Tensor& residual, const Tensor& y) {
    return nn::linear_forward(s, linear, operand, nn::Reads::fprop_and_wgrad, residual, y);
  }
  // Overwrites gx, if there is one, and adds to the gradients of weight and bias.
  static void linear_backward(const nn::Linear& linear, const nn::Scope& s, const nn::Operand& gy, const nn::Operand& x,
                              const Tensor& gx) {
    const ArenaScope temporaries(s.scratch);
    const Tensor to = gx ? gx : allocate(s.scratch, s.dtype, {gy.values.rows(), linear.weight().spec.shape[1]});
    nn::linear_backward(s, linear, gy, x, to);
  }

  static double dot(const Tensor& a, const Tensor& b) {
    const std::vector<double> x = values_of(a), y = values_of(b);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  }
  // Compares df/dx of an F64 tensor with finite differences, at `samples` of its elements.
  static void expect_gradient(const std::string& name, const Tensor& x, const Tensor& gradient, const std::function<double()>& f,
                              std::int64_t samples = 64, double magnitude = 0) {
    const std::vector<double> expected = values_of(gradient);
    // Sums have up to thousands of terms. Their rounding errors grow as a random walk does.
    EXPECT_TRUE(gradient_agrees({.name = name,
                                 .x = x.as<double>(),
                                 .gradient = expected.data(),
                                 .count = x.elements(),
                                 .f = f,
                                 .samples = samples,
                                 .noise = 1024 * std::numeric_limits<double>::epsilon(),
                                 .magnitude = magnitude}));
  }
  // `again` computes the gradient once more. The gradient must be twice as large afterwards, because layers add to it.
  static void expect_doubled(const Tensor& gradient, const std::function<void()>& again) {
    std::vector<double> once = values_of(gradient);
    again();
    for (double& value : once) value *= 2;
    double largest = 0;
    for (const double value : once) largest = std::max(largest, std::abs(value));
    EXPECT_TRUE(near(values_of(gradient), once, Tolerance{.absolute = 64 * std::numeric_limits<double>::epsilon() * largest}));
  }

  Recipe recipe;
  std::unique_ptr<recipes::ScaleState> scales;
  std::unique_ptr<parallel::ParameterStore> parameters;
  Arena stash{*device, MemoryCategory::activations, std::size_t{1} << 24};
  std::unique_ptr<comm::Group> alone = comm::make_silent_group("context");
};

}  // namespace octet::testing
