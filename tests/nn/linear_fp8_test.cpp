// The FP8 paths of nn::Linear. Every product is compared with the FP64 product of its decoded operands, and with the FP64 product
// of the original values. It must differ from the latter by as much as the FP8 formats imply.
#include <algorithm>
#include <map>
#include <span>

#include "nn/layer_fixture.h"
#include "octet/nn/linear.h"
#include "octet/tensor/host_tensor.h"
#include "support/bounds.h"

namespace octet::nn {
namespace {

using testing::near;
using testing::values_of;

// No multiple of 128 and more than one block of each. The number of tokens is no multiple of 16.
constexpr std::int64_t kRows = 150, kIn = 160, kOut = 272;

struct Matrix {
  std::vector<double> values;
  std::size_t rows = 0, cols = 0;
  double at(std::size_t r, std::size_t c) const { return values[r * cols + c]; }
};

Matrix matrix(const Tensor& t) { return {values_of(t), static_cast<std::size_t>(t.rows()), static_cast<std::size_t>(t.cols())}; }
Matrix transposed(const Matrix& m) {
  Matrix result{std::vector<double>(m.values.size()), m.cols, m.rows};
  for (std::size_t r = 0; r < m.rows; ++r) {
    for (std::size_t c = 0; c < m.cols; ++c) result.values[c * m.rows + r] = m.at(r, c);
  }
  return result;
}
Matrix magnitudes(Matrix m) {
  for (double& value : m.values) value = std::abs(value);
  return m;
}
// Returns A · Bᵀ in F64.
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix d{std::vector<double>(a.rows * b.rows), a.rows, b.rows};
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < b.rows; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < a.cols; ++k) sum += a.at(i, k) * b.at(j, k);
      d.values[i * b.rows + j] = sum;
    }
  }
  return d;
}
double squares_by_columns(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.cols; ++k) {
    double x = 0, y = 0;
    for (std::size_t i = 0; i < a.rows; ++i) x += a.at(i, k) * a.at(i, k);
    for (std::size_t j = 0; j < b.rows; ++j) y += b.at(j, k) * b.at(j, k);
    sum += x * y;
  }
  return sum;
}
double squares(const Matrix& m) {
  double sum = 0;
  for (const double value : m.values) sum += value * value;
  return sum;
}

// Multiplies the codes by the scales of their tiles. A tile has `height` rows and `width` columns; 0 means all of them.
Matrix decode(const HostTensor& codes, const HostTensor& scale_inv, std::int64_t height, std::int64_t width) {
  Matrix result = matrix(codes.view());
  const std::vector<double> scales = values_of(scale_inv.view());
  const std::size_t h = height > 0 ? static_cast<std::size_t>(height) : result.rows;
  const std::size_t w = width > 0 ? static_cast<std::size_t>(width) : result.cols;
  const std::size_t across = (result.cols + w - 1) / w;
  for (std::size_t r = 0; r < result.rows; ++r) {
    for (std::size_t c = 0; c < result.cols; ++c) {
      const double scale = scales[r / h * across + c / w];
      result.values[r * result.cols + c] *= scale_inv.dtype() == DType::e8m0 ? std::exp2(scale - 127) : scale;
    }
  }
  return result;
}
Matrix decode(const HostTensor& codes, const HostTensor& scale_inv, ScaleTile tile) {
  switch (tile) {
    case ScaleTile::tensor:
      return decode(codes, scale_inv, 0, 0);
    case ScaleTile::row:
      return decode(codes, scale_inv, 1, 0);
    case ScaleTile::block_1x128:
      return decode(codes, scale_inv, 1, 128);
    case ScaleTile::block_128x128:
      return decode(codes, scale_inv, 128, 128);
    case ScaleTile::mx_1x32:
      return decode(codes, scale_inv, 1, 32);
  }
  return {};
}

struct Watcher final : Watch {
  struct Operand {
    Matrix source, rows, columns;  // `columns` comes from the transposed codes
  };
  void operand(const Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) override {
    EXPECT_EQ(linear, "layer");
    const HostQuantized host = to_host(scope.stream, q, source.rows(), source.cols());
    Operand& o = operands[role];
    o.source = matrix(source);
    o.rows = decode(host.codes, host.scale_inv, q.tile);
    if (host.columnwise.bytes() > 0) o.columns = decode(host.columnwise, host.columnwise_scale_inv, q.tile);
  }
  void product(const Scope& scope, std::string_view, std::string_view which, const kernels::Gemm& gemm) override {
    const ArenaScope temporaries(scope.scratch);
    const Tensor value = run_alone(scope, gemm);
    EXPECT_EQ(value.dtype, DType::f32);
    products[std::string(which)] = matrix(value);
  }
  void attention(const Scope&, std::string_view, const Tensor&) override {}
  std::map<Role, Operand> operands;
  std::map<std::string, Matrix> products;
};

struct Setting {
  std::string name, recipe;
  recipes::Options options = {};
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  std::vector<Setting> result;
  for (const std::string& recipe : recipes::recipe_names()) {
    if (!recipes::make_recipe(recipe, {}).is_fp8()) continue;
    result.push_back({recipe, recipe});
    result.push_back({recipe + "_wgrad_bf16", recipe, {.wgrad = "bf16"}});
  }
  for (const std::string recipe : {"fp8_delayed", "fp8_current"})
    result.push_back({recipe + "_e4m3", recipe, {.format = "e4m3"}});
  for (const std::string recipe : {"fp8_current", "fp8_rowwise"}) {
    result.push_back({recipe + "_power_of_2", recipe, {.power_of_2 = "true"}});
  }
  result.push_back({"fp8_block_any_scale", "fp8_block", {.power_of_2 = "false"}});
  return result;
}

struct Fp8Linear : testing::LayerTest, ::testing::WithParamInterface<Setting> {
  void make(const Recipe& of) {
    use(of);
    linear = std::make_unique<Linear>(Linear::Options{.parts = {"layer"}, .out = kOut, .in = kIn, .init_std = 0.1}, recipe,
                                      *parameters, *scales);
    materialise({&linear->weights()[0]});
    x = random(DType::bf16, {kRows, kIn});
    gy = random(DType::bf16, {kRows, kOut}, 0.1);
    y = zeros(DType::bf16, {kRows, kOut});
    gx = zeros(DType::bf16, {kRows, kIn});
  }
  void run(Watch* watch, const Tensor& residual = {}, parallel::Overwrites overwrites = parallel::Overwrites::all) {
    stash.release_to(0);
    Scope s = scope();
    s.watch = watch;
    s.overwrites = overwrites;
    const Operand saved = linear_forward(*linear, s, {.values = x}, residual, y);
    linear_backward(*linear, s, {.values = gy}, saved, gx);
    EXPECT_EQ(scratch.used(), 0u);
  }

  std::unique_ptr<Linear> linear;
  Tensor x, gy, y, gx;
};

// `roundings` counts the roundings of a result that do not belong to the sum.
void expect_product(const std::string& name, const Matrix& actual, const Matrix& a, const Matrix& b, int roundings) {
  const Matrix expected = product(a, b), size = product(magnitudes(a), magnitudes(b));
  EXPECT_TRUE(near(
      actual.values, expected.values,
      [&](std::size_t i) { return dot_error_bound(static_cast<std::int64_t>(a.cols), size.values[i], roundings); },
      static_cast<std::int64_t>(expected.cols)))
      << name;
}

struct Distance {
  double actual = 0;
  Band band{};
};
Distance distance(const Matrix& actual, const Matrix& a, const Matrix& b, Fp8Format format_a, Fp8Format format_b) {
  const Matrix exact = product(a, b);
  return {testing::relative_frobenius(actual.values, exact.values),
          product_noise(format_a, format_b, squares(exact) / squares_by_columns(a, b))};
}

void expect_noise(const std::string& name, const Distance& d) {
  EXPECT_GE(d.actual, d.band.low) << name << ": too good for FP8";
  EXPECT_LE(d.actual, d.band.high) << name << ": too bad for FP8";
}

TEST_P(Fp8Linear, ProductsAreThoseOfTheirOperandsAndAsNoisyAsFp8) {
  make(recipes::make_recipe(GetParam().recipe, GetParam().options));
  ASSERT_TRUE(linear->is_fp8());
  Watcher watcher;
  run(&watcher);
  ASSERT_EQ(watcher.operands.size(), 3u);
  ASSERT_EQ(watcher.products.size(), 3u);
  const Watcher::Operand& X = watcher.operands[Role::activation];
  const Watcher::Operand& W = watcher.operands[Role::weight];
  const Watcher::Operand& G = watcher.operands[Role::gradient];
  EXPECT_EQ(X.source.values, values_of(x));
  EXPECT_EQ(W.source.values, values_of(linear->weight().master));
  EXPECT_EQ(G.source.values, values_of(gy));

  // Block scales cost three roundings of the operands. Tensor and row scales cost two of the result.
  expect_product("y", watcher.products["y"], X.rows, W.rows, 4);
  expect_product("gx", watcher.products["gx"], G.rows, W.columns, 4);
  expect_noise("y", distance(watcher.products["y"], X.source, W.source, recipe.x.format, recipe.w.format));
  expect_noise("gx", distance(watcher.products["gx"], G.source, transposed(W.source), recipe.g.format, recipe.w.format));
  if (recipe.wgrad_bf16) {
    expect_product("gw", watcher.products["gw"], transposed(G.source), transposed(X.source), 0);
  } else {
    expect_product("gw", watcher.products["gw"], G.columns, X.columns, 4);
    expect_noise("gw",
                 distance(watcher.products["gw"], transposed(G.source), transposed(X.source), recipe.g.format, recipe.x.format));
  }

  // The layer's results equal the observed products, rounded once.
  const auto rounded_to_bf16 = [](const Matrix& m) {
    return [&m](std::size_t i) { return kUnitRoundoffBf16 * std::abs(m.values[i]); };
  };
  EXPECT_TRUE(near(values_of(y), watcher.products["y"].values, rounded_to_bf16(watcher.products["y"]), kOut));
  EXPECT_TRUE(near(values_of(gx), watcher.products["gx"].values, rounded_to_bf16(watcher.products["gx"]), kIn));
  EXPECT_EQ(values_of(linear->weight().grad), watcher.products["gw"].values);
}

// The band distinguishes FP8 from BF16: the same layer in BF16 stays below each band, although its results are rounded to BF16.
TEST_F(Fp8Linear, Bf16IsOutsideTheBand) {
  make(recipes::make_recipe("bf16", {}));
  run(nullptr);
  const Matrix X = matrix(x), W = matrix(linear->weight().master), G = matrix(gy);
  for (const Fp8Format g : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const Fp8Format e4m3 = Fp8Format::e4m3;
    for (const Distance& d : {distance(matrix(y), X, W, e4m3, e4m3), distance(matrix(gx), G, transposed(W), g, e4m3),
                              distance(matrix(linear->weight().grad), transposed(G), transposed(X), g, e4m3)}) {
      EXPECT_LT(d.actual, d.band.low);
    }
  }
}

TEST_P(Fp8Linear, WatchingChangesNothing) {
  const auto results = [&](Watch* watch) {
    make(recipes::make_recipe(GetParam().recipe, GetParam().options));
    const Tensor given = filled(DType::bf16, {kRows, kIn}, [](std::int64_t i) { return std::sin(static_cast<double>(i)); });
    stream->copy(x.data, given.data, x.bytes());
    stream->copy(gy.data, given.data, std::min(gy.bytes(), given.bytes()));
    stream->zero(gy.as_bytes() + given.bytes(), gy.bytes() - given.bytes());
    run(watch);
    std::vector<std::vector<double>> all = {values_of(y), values_of(gx), values_of(linear->weight().grad)};
    for (const auto& named : scales->tensors()) all.push_back(values_of(named.tensor));
    return all;
  };
  Watcher watcher;
  EXPECT_EQ(results(&watcher), results(nullptr));
}

TEST_P(Fp8Linear, AddsTheResidualAndAccumulatesTheGradient) {
  make(recipes::make_recipe(GetParam().recipe, GetParam().options));
  Watcher watcher;
  const Tensor residual = random(DType::bf16, {kRows, kOut});
  const Tensor before = random(DType::f32, {kOut, kIn});
  stream->copy(linear->weight().grad.data, before.data, before.bytes());
  run(&watcher, residual, parallel::Overwrites::none);
  const std::vector<double> r = values_of(residual), b = values_of(before);
  std::vector<double> sum = watcher.products["y"].values, gradient = watcher.products["gw"].values;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += r[i];
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += b[i];
  EXPECT_TRUE(near(values_of(y), sum, {.absolute = 0x1p-20, .relative = kUnitRoundoffBf16}));
  // For a BF16 wgrad the sum starts from the old gradient, so the order of the additions differs.
  const double tokens = static_cast<double>(kRows);
  EXPECT_TRUE(near(values_of(linear->weight().grad), gradient, {.absolute = gamma(tokens, kUnitRoundoffF32) * 16}));
}

TEST_P(Fp8Linear, OverwritesTheGradientOfTheStepBefore) {
  make(recipes::make_recipe(GetParam().recipe, GetParam().options));
  Watcher watcher;
  for (float& g : std::span(linear->weight().grad.as<float>(), static_cast<std::size_t>(kOut * kIn))) g = 1e30f;
  run(&watcher, {});
  const double tokens = static_cast<double>(kRows);
  EXPECT_TRUE(
      near(values_of(linear->weight().grad), watcher.products["gw"].values, {.absolute = gamma(tokens, kUnitRoundoffF32) * 16}));
}

// A forward and a rebuild compute the same scale of a tensor and keep the same data of X.
TEST_P(Fp8Linear, RebuildKeepsTheSameBits) {
  make(recipes::make_recipe(GetParam().recipe, GetParam().options));
  const Operand kept = linear_forward(*linear, scope(), {.values = x}, {}, y);
  std::vector<std::vector<double>> state;
  for (const auto& named : scales->tensors()) state.push_back(values_of(named.tensor));
  const Operand rebuilt = linear->x().complete(rebuild_scope(scope()), {.values = x}, Reads::wgrad);
  for (std::size_t i = 0; i < state.size(); ++i) EXPECT_EQ(values_of(scales->tensors()[i].tensor), state[i]) << "recorded twice";
  EXPECT_EQ(kept.values.data, recipe.wgrad_bf16 ? x.data : nullptr) << "X is kept as values or as codes, never as both";
  EXPECT_EQ(kept.codes.rowwise || kept.codes.columnwise, !recipe.wgrad_bf16);
  if (recipe.wgrad_bf16) return;
  const bool one = kept.codes.rowwise_serves_both();
  EXPECT_EQ(one, recipe.x.tile == ScaleTile::tensor) << "one scale is enough for both directions on a CPU";
  EXPECT_NE(static_cast<bool>(kept.codes.rowwise), static_cast<bool>(kept.codes.columnwise)) << "one direction is kept";
  EXPECT_TRUE(one ? testing::same_bytes(rebuilt.codes.rowwise, kept.codes.rowwise)
                  : testing::same_bytes(rebuilt.codes.columnwise, kept.codes.columnwise));
  EXPECT_TRUE(testing::same_bytes(rebuilt.codes.columnwise_scale_inv, kept.codes.columnwise_scale_inv));
}

INSTANTIATE_TEST_SUITE_P(Recipes, Fp8Linear, ::testing::ValuesIn(settings()), [](const auto& param) { return param.param.name; });

// With delayed scaling, the linear records the largest magnitudes of X and G over the micro-batches if the scope says so. The
// amax of W is recorded when W is cast.
TEST_F(Fp8Linear, RecordsAmaxOfEveryOperand) {
  make(recipes::make_recipe("fp8_delayed", {.amax_history_len = 4}));
  const auto largest = [](const Tensor& t) {
    double result = 0;
    for (const double value : values_of(t)) result = std::max(result, std::abs(value));
    return result;
  };
  const auto recorded = [&](std::size_t role) { return values_of(scales->tensors()[role * 2 + 1].tensor); };
  const Tensor w = zeros(DType::bf16, {kOut, kIn});
  for (std::int64_t i = 0; i < w.elements(); ++i) w.as<BFloat16>()[i] = BFloat16(linear->weight().master.as<float>()[i]);
  EXPECT_EQ(recorded(0), (std::vector<double>{0, 0, 0, 0}));
  EXPECT_EQ(recorded(1), (std::vector<double>{largest(w), 0, 0, 0}));
  run(nullptr);
  const double x1 = largest(x), g1 = largest(gy);
  x.as<BFloat16>()[77] = BFloat16(-9.0f);
  stream->zero(gy.data, gy.bytes());
  run(nullptr);
  EXPECT_LT(x1, 9.0);
  EXPECT_EQ(recorded(0), (std::vector<double>{9, 0, 0, 0}));
  EXPECT_EQ(recorded(2), (std::vector<double>{g1, 0, 0, 0})) << "the larger of two micro-batches";

  x.as<BFloat16>()[77] = BFloat16(100.0f);
  Scope evaluation = scope();
  evaluation.record = Record::nothing;
  const Operand saved = linear_forward(*linear, evaluation, {.values = x}, {}, y);
  linear_backward(*linear, evaluation, {.values = random(DType::bf16, {kRows, kOut}, 10.0)}, saved, gx);
  EXPECT_EQ(recorded(0), (std::vector<double>{9, 0, 0, 0}));
  EXPECT_EQ(recorded(2), (std::vector<double>{g1, 0, 0, 0}));
}

// Without a master weight, W is quantised from the BF16 weight itself.
TEST_F(Fp8Linear, WatchesTheBf16WeightWhereItIsPrimary) {
  use(recipes::make_recipe("fp8_current", {}));
  Linear layer({.parts = {"layer"}, .out = 32, .in = 48}, recipe, *parameters, *scales);
  parameters->materialise(*device, {.master_weights = false});
  parameters->initialise(*stream, 3);
  parameters->refresh(*stream, scratch);
  const Tensor in = random(DType::bf16, {5, 48}), out = zeros(DType::bf16, {5, 32});
  Watcher watcher;
  Scope s = scope();
  s.watch = &watcher;
  linear_forward(layer, s, {.values = in}, {}, out);
  EXPECT_EQ(watcher.operands[Role::weight].source.values, values_of(layer.weight().value));
}

}  // namespace
}  // namespace octet::nn
