// A model built from Octet's layers: a residual block with two linears learns which of the first numbers of a random row is the
// largest. `own-model RECIPE [cuda]` (bf16, fp8_delayed, fp8_current, fp8_rowwise, fp8_block, mxfp8) prints the loss during
// training.
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

#include "octet/base/require.h"
#include "octet/base/rng.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/fill/fill.h"
#include "octet/nn/head_loss.h"
#include "octet/nn/mlp.h"
#include "octet/nn/norm.h"
#include "octet/optim/optimizer.h"
#include "octet/recipes/registry.h"

using namespace octet;

constexpr std::int64_t kRows = 512, kDim = 64, kHidden = 256, kClasses = 16;
constexpr int kSteps = 60;

// Computes class logits = head(x + mlp(norm(x))). Octet has no automatic differentiation: step() calls forward and backward.
struct Model {
  Model(const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
      : norm(nn::NormKind::rms, "norm", kDim, 1e-5, store),
        mlp({.name = "mlp", .dim = kDim, .ffn = kHidden, .init_std = 0.1, .output_init_std = 0.1}, recipe, store, scales),
        head({.vocab = kClasses, .dim = kDim, .init_std = 0.1}, recipe, store, scales) {}

  void step(const nn::Scope& scope, const Tensor& x, const Tensor& classes, double* total) {
    const ArenaScope forgotten(scope.stash), temporaries(scope.scratch);
    const Tensor y = allocate(scope.stash, scope.dtype, x.shape), gy = allocate(scope.stash, scope.dtype, x.shape);
    const Tensor h = allocate(scope.stash, scope.dtype, x.shape), gh = allocate(scope.stash, scope.dtype, x.shape);
    const Tensor rstd = norm.allocate_statistics(scope, scope.stash, x.rows());
    nn::MlpSaved saved;
    norm.forward(scope, x, {.values = h}, rstd);
    mlp.forward(scope, {.values = h}, {}, y, saved);
    kernels::add(scope.stream, {.x = x, .y = y});
    head.loss(scope, y, classes, total, gy);
    mlp.backward(scope, {.values = gy}, saved, gh);
    norm.backward(scope, gh, x, rstd, {.values = gy});  // adds to gy, which holds the gradient of the residual branch
  }

  nn::Norm norm;
  nn::Mlp mlp;
  nn::HeadLoss head;
};

void train(const char* name, DeviceKind kind) {
  const Recipe recipe = recipes::make_recipe(name, {});
  const auto device = make_device(kind);
  const auto stream = device->make_stream();
  Arena stash(*device, MemoryCategory::activations, std::size_t{1} << 26),
      scratch(*device, MemoryCategory::workspace, std::size_t{1} << 27);  // cuBLASLt uses half of it
  const auto alone = comm::make_silent_group("alone");
  const nn::Scope scope{
      .stream = *stream, .stash = stash, .scratch = scratch, .context = *alone, .tensor = *alone, .expert = *alone};

  parallel::ParameterStore store;
  recipes::ScaleState scales(recipe);
  Model model(recipe, store, scales);
  store.materialise(*device, {});
  scales.materialise(*stream);
  for (nn::Linear* linear : {&model.mlp.up(), &model.mlp.down(), &model.head.head()}) linear->bind();
  store.initialise(*stream, 1);
  optim::Optimizer optimizer(*device, store, {.weight_decay = 0.0});

  const Tensor x = allocate(stash, DType::bf16, {kRows, kDim}), classes = allocate(stash, DType::i32, {kRows});
  kernels::fill_normal(*stream, {.x = x, .deviation = 1.0, .seed = 2});
  std::vector<BFloat16> numbers(kRows * kDim);
  std::vector<std::int32_t> largest(kRows);  // index of the largest of the first kClasses numbers of each row: the class
  stream->copy_to_host(numbers.data(), x.data, x.bytes());
  stream->synchronize();
  const auto number = [&](int row, int i) { return static_cast<float>(numbers[static_cast<std::size_t>(row * kDim + i)]); };
  for (int row = 0; row < kRows; ++row)
    for (int i = 1; i < kClasses; ++i)
      if (int& best = largest[static_cast<std::size_t>(row)]; number(row, i) > number(row, best)) best = i;
  stream->copy_to_device(classes.data, largest.data(), classes.bytes());
  for (int step = 1; step <= kSteps; ++step) {
    store.refresh(*stream, scratch);  // casts the weights to FP8
    store.zero_gradients(*stream);
    optimizer.reset_sums(*stream);
    model.step(scope, x, classes, optimizer.loss_total());
    optimizer.add_squares(*stream, scratch, store.all_units());
    optimizer.prepare(*stream, {.learning_rate = 3e-3, .step = static_cast<std::uint32_t>(step)});
    scales.update(*stream, optimizer.found_inf());
    optimizer.update(*stream);
    const kernels::StepScalars scalars = optimizer.read(*stream);
    if (step == 1 || step % 10 == 0) std::printf("%s step %d loss %.4f\n", name, step, scalars.loss_sum / scalars.token_count);
  }
}

int main(int argc, char** argv) try {
  demand(argc < 3 || argv[2] == std::string_view("cuda"), ExitCode::config, argv[2], ": not a device; say cuda, or nothing");
  train(argc > 1 ? argv[1] : "fp8_current", argc > 2 ? DeviceKind::cuda : DeviceKind::cpu);
} catch (const std::exception& error) {
  std::fprintf(stderr, "own-model: %s\n", error.what());
  return 1;
}
