#include "octet/parallel/parameter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/numerics/scale.h"
#include "support/near.h"

namespace octet::parallel {
namespace {

using testing::same_bytes;
using testing::values_of;

struct Parameters : ::testing::Test {
  Tensor zeros(DType dtype, Shape shape) {
    buffers.push_back(device->allocate(bytes_of(dtype, shape), MemoryCategory::workspace));
    return view(buffers.back(), dtype, shape);
  }
  std::size_t taken(MemoryCategory category) const { return device->memory().bytes[static_cast<std::size_t>(category)]; }

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  Arena scratch{*device, MemoryCategory::workspace, std::size_t{1} << 22};
  std::deque<Buffer> buffers;
};

QuantSpec spec_of(ScaleTile tile, ScaleSource source = ScaleSource::tensor) { return {.tile = tile, .source = source}; }

// Lists the copies of a parameter that exist, which decide how much memory FP8 training takes.
TEST_F(Parameters, StoreWhatIsReadAndNothingElse) {
  struct Case {
    DType compute;
    bool master_weights, quantised, read_as_values;
    bool master, value, codes;
    DType primary;
  };
  const Case cases[] = {
      {DType::bf16, true, false, false, true, true, false, DType::f32},     // a norm, an embedding, a linear in BF16
      {DType::bf16, true, true, false, true, false, true, DType::f32},      // a linear in FP8, without a BF16 copy
      {DType::bf16, true, true, true, true, true, true, DType::f32},        // a tied embedding with an FP8 head
      {DType::bf16, false, false, false, false, true, false, DType::bf16},  // BF16 weights
      {DType::bf16, false, true, false, false, true, true, DType::bf16},
      {DType::f32, true, false, false, false, true, false, DType::f32},  // the value itself is the master weight
      {DType::f64, true, false, false, false, true, false, DType::f64},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(
        concat(name_of(c.compute), " master ", c.master_weights, " quantised ", c.quantised, " values ", c.read_as_values));
    auto store = std::make_unique<ParameterStore>();
    Parameter& p = store->add({.name = "w", .shape = {32, 48}, .quant = {}, .read_as_values = c.read_as_values});
    if (c.quantised) p.spec.quant = spec_of(ScaleTile::tensor);
    store->materialise(*device, {.compute = c.compute, .master_weights = c.master_weights, .training = false});
    EXPECT_EQ(static_cast<bool>(p.master), c.master);
    EXPECT_EQ(static_cast<bool>(p.value), c.value);
    EXPECT_EQ(static_cast<bool>(p.codes.rowwise), c.codes);
    EXPECT_EQ(p.codes.rowwise_serves_both(), c.codes);
    EXPECT_FALSE(p.codes.columnwise);
    EXPECT_EQ(p.primary().dtype, c.primary);
    EXPECT_FALSE(p.grad);
    EXPECT_EQ(taken(MemoryCategory::gradients) + taken(MemoryCategory::moments), 0u);
    EXPECT_EQ(taken(MemoryCategory::master_weights), c.master ? 32u * 48 * 4 : 0u);
    const std::size_t values = c.value ? 32 * 48 * size_of(c.compute) : 0, codes = c.codes ? 32 * 48 : 0;
    EXPECT_GE(taken(MemoryCategory::weights), values + codes);
    EXPECT_LE(taken(MemoryCategory::weights), values + codes + Device::kAlignment) << "a scale, aligned";
  }
}

TEST_F(Parameters, GradientsAndMomentsHaveTheDTypesAskedFor) {
  ParameterStore store;
  Parameter& p = store.add({.name = "w", .shape = {16, 32}});
  store.add({.name = "norm", .shape = {32}, .init = Init::ones});
  store.materialise(*device, {.grad = DType::bf16, .moments = DType::f32});
  EXPECT_EQ(p.grad.dtype, DType::bf16);
  EXPECT_EQ(p.moment1.dtype, DType::f32);
  EXPECT_EQ(p.moment2.shape, p.spec.shape);
  EXPECT_NE(p.moment1.data, p.moment2.data);
  p.grad.as<BFloat16>()[3] = BFloat16(1.0f);
  store.zero_gradients(*stream);
  EXPECT_EQ(values_of(p.grad), std::vector<double>(16 * 32, 0.0));
  EXPECT_THROW(store.materialise(*device, {}), Error);
}

TEST_F(Parameters, ScalesOfEveryTileHaveTheirShape) {
  for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_128x128, ScaleTile::mx_1x32}) {
    ParameterStore store;
    Parameter& p = store.add({.name = "w", .shape = {144, 272}, .quant = spec_of(tile)});
    store.materialise(*device, {});
    EXPECT_EQ(p.codes.tile, tile);
    EXPECT_EQ(p.codes.rowwise.shape, (Shape{144, 272}));
    const bool one = tile == ScaleTile::tensor;
    EXPECT_EQ(p.codes.rowwise_serves_both(), one);
    EXPECT_EQ(p.codes.columnwise.shape, one ? Shape() : Shape({272, 144})) << "dims of weights are multiples of 16: nothing is padded";
    EXPECT_EQ(p.codes.rowwise_scale_inv.shape, scale_shape(tile, 144, 272));
    EXPECT_EQ(p.codes.columnwise_scale_inv.shape, scale_shape(tile, 272, 144));
    EXPECT_EQ(p.codes.rowwise_scale_inv.data == p.codes.columnwise_scale_inv.data, one);
  }
}

// Initial values depend only on the seed, the name and the element. The order of parameters, other parameters, the storage and
// the number of threads do not matter.
TEST_F(Parameters, InitialisationDependsOnSeedAndNameAlone) {
  const Shape shape{300, 700};  // more than one thread's task
  const auto values = [&](std::vector<std::string> names, const std::string& of, std::uint64_t seed, Storage storage,
                          int threads) {
    set_num_threads(threads);
    ParameterStore store;
    const Parameter* wanted = nullptr;
    for (const std::string& name : names) {
      const Parameter& p = store.add({.name = name, .shape = shape, .init_std = 0.5});
      if (name == of) wanted = &p;
    }
    storage.training = false;
    store.materialise(*device, storage);
    store.initialise(*stream, seed);
    std::vector<double> result = values_of(wanted->primary());
    set_num_threads(available_cores());
    return result;
  };
  const std::vector<double> expected = values({"a", "b"}, "b", 5, {}, 1);
  EXPECT_EQ(values({"b", "c", "a"}, "b", 5, {}, 3), expected);
  EXPECT_EQ(values({"b"}, "b", 5, {.compute = DType::f32}, 2), expected);
  EXPECT_NE(values({"a", "b"}, "a", 5, {}, 1), expected);
  EXPECT_NE(values({"a", "b"}, "b", 6, {}, 1), expected);

  // BF16 weights start from the same numbers, rounded.
  const std::vector<double> rounded = values({"b"}, "b", 5, {.master_weights = false}, 2);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(rounded[i], static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(expected[i]))))) << i;
    sum += expected[i];
    squares += expected[i] * expected[i];
  }
  // The mean and the variance of n normal numbers deviate by about std / sqrt(n) and var * sqrt(2 / n). The bound is five times
  // that.
  const double n = static_cast<double>(expected.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 0.25, 5 * 0.25 * std::sqrt(2 / n));
}

TEST_F(Parameters, NormsStartAtOne) {
  ParameterStore store;
  Parameter& p = store.add({.name = "norm", .shape = {33}, .init = Init::ones});
  store.materialise(*device, {});
  EXPECT_EQ(values_of(p.master), std::vector<double>(33, 0.0)) << "zero until initialised";
  store.initialise(*stream, 1);
  EXPECT_EQ(values_of(p.master), std::vector<double>(33, 1.0));
  EXPECT_EQ(values_of(p.value), std::vector<double>(33, 0.0)) << "stale until refreshed";
  store.refresh(*stream, scratch);
  EXPECT_EQ(values_of(p.value), std::vector<double>(33, 1.0));
}

// Codes are made from the master rounded to BF16, so that they agree with the 16-bit weights and the exported weights.
TEST_F(Parameters, RefreshQuantisesTheBf16RoundingOfTheMaster) {
  for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_128x128, ScaleTile::mx_1x32}) {
    ParameterStore store;
    Parameter& p = store.add({.name = "w", .shape = {160, 272}, .init_std = 0.1, .quant = spec_of(tile), .read_as_values = true});
    store.materialise(*device, {});
    store.initialise(*stream, 11);
    store.refresh(*stream, scratch);
    const Tensor bf16 = zeros(DType::bf16, p.spec.shape);
    for (std::int64_t i = 0; i < p.elements(); ++i) bf16.as<BFloat16>()[i] = BFloat16(p.master.as<float>()[i]);
    EXPECT_TRUE(same_bytes(p.value, bf16));
    Quantized q = p.codes;
    q.rowwise = zeros(DType::f8_e4m3, p.codes.rowwise.shape);
    if (q.columnwise) q.columnwise = zeros(DType::f8_e4m3, p.codes.columnwise.shape);
    q.rowwise_scale_inv = zeros(p.codes.rowwise_scale_inv.dtype, p.codes.rowwise_scale_inv.shape);
    q.columnwise_scale_inv = tile == ScaleTile::tensor
                                 ? q.rowwise_scale_inv
                                 : zeros(p.codes.columnwise_scale_inv.dtype, p.codes.columnwise_scale_inv.shape);
    kernels::quantize(*stream, scratch, {.x = bf16, .spec = *p.spec.quant, .out = q});
    EXPECT_TRUE(same_bytes(p.codes.rowwise, q.rowwise));
    EXPECT_TRUE(!q.columnwise || same_bytes(p.codes.columnwise, q.columnwise));
    EXPECT_TRUE(same_bytes(p.codes.rowwise_scale_inv, q.rowwise_scale_inv));
    EXPECT_TRUE(same_bytes(p.codes.columnwise_scale_inv, q.columnwise_scale_inv));
  }
}

// The cast uses the scale in the slot. It replaces the slot's amax by the amax of this cast instead of keeping the larger one.
TEST_F(Parameters, RefreshCastsWithTheDelayedScaleAndRecordsAnew) {
  ParameterStore store;
  Parameter& p = store.add({.name = "w", .shape = {16, 16}, .quant = spec_of(ScaleTile::tensor, ScaleSource::history)});
  store.materialise(*device, {});
  const float scale = 8.0f;
  float amax = 100.0f;
  p.scale_slot = {&scale, &amax};
  for (std::int64_t i = 0; i < 256; ++i) p.master.as<float>()[i] = static_cast<float>(i - 200) * 0.125f;
  store.refresh(*stream, scratch);
  EXPECT_EQ(amax, 25.0f);
  EXPECT_EQ(p.codes.rowwise_scale_inv.as<float>()[0], 0.125f);
  for (std::int64_t i = 0; i < 256; ++i) {
    EXPECT_EQ(p.codes.rowwise.as_bytes()[i], encode_fp8(Fp8Format::e4m3, static_cast<float>(i - 200))) << i;
  }
  p.master.as<float>()[0] = 0.0f;
  // The value lies just below the middle between 1.125 and 1.25. BF16 rounds it to the middle, which goes to the even code.
  p.master.as<float>()[1] = 1.1874f / scale;
  store.refresh(*stream, scratch);
  EXPECT_EQ(amax, 24.75f);
  EXPECT_EQ(p.codes.rowwise.as_bytes()[1], encode_fp8(Fp8Format::e4m3, 1.25f));
}

TEST_F(Parameters, AreDescribedOnTheMetaDevice) {
  const auto meta = make_device(DeviceKind::meta);
  const auto meta_stream = meta->make_stream();
  ParameterStore huge;
  huge.add({.name = "w", .shape = {std::int64_t{1} << 20, std::int64_t{1} << 20}, .quant = spec_of(ScaleTile::block_128x128)});
  huge.materialise(*meta, {});
  huge.initialise(*meta_stream, 1);
  EXPECT_EQ(meta->memory().bytes[static_cast<std::size_t>(MemoryCategory::master_weights)], std::size_t{1} << 42);
}

}  // namespace
}  // namespace octet::parallel
