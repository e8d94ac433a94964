#include "octet/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/optim/schedule.h"
#include "support/near.h"
#include "support/paths.h"

namespace octet::optim {
namespace {

using parallel::Parameter;
using parallel::ParameterStore;
using parallel::Storage;
using testing::near_norm;
using testing::same_bytes;
using testing::values_of;

struct OptimizerTest : ::testing::Test {
  void SetUp() override {
    const auto add = [this](const char* name, Shape shape, bool matrix) {
      parallel::ParameterSpec spec;
      spec.name = name;
      spec.shape = shape;
      spec.init = matrix ? parallel::Init::normal : parallel::Init::ones;
      spec.decay = matrix;
      store.add(spec);
    };
    add("embed", {12, 16}, true);
    add("norm", {16}, false);
    add("proj", {7, 16}, true);
  }
  void start(const Storage& storage, const OptimizerOptions& options) {
    store.materialise(*device, storage);
    store.initialise(*stream, 1);
    optimizer = std::make_unique<Optimizer>(*device, store, options);
  }
  // Fills the gradients with numbers that depend only on the step.
  void fill_gradients(std::uint32_t step) {
    for (Parameter& p : store.parameters()) {
      const Rng rng(step, RngStream::test, name_id(p.spec.name));
      for (std::int64_t i = 0; i < p.elements(); ++i)
        p.grad.as<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
    }
  }
  void step(std::uint32_t number, double loss = 1.0, double tokens = 4.0) {
    optimizer->reset_sums(*stream);
    optimizer->loss_total()[0] = loss;
    optimizer->loss_total()[1] = tokens;
    optimizer->add_squares(*stream, scratch, store.all_units());
    optimizer->prepare(*stream, {.learning_rate = 0.01, .step = number});
    optimizer->update(*stream);
  }
  // Returns everything that a step may change.
  std::vector<std::byte> state() const {
    std::vector<std::byte> bytes;
    const auto add = [&](const Tensor& tensor) {
      const auto* data = static_cast<const std::byte*>(tensor.data);
      bytes.insert(bytes.end(), data, data + tensor.bytes());
    };
    for (const Parameter& p : store.parameters()) {
      add(p.primary());
      add(p.value);
      add(p.moment1);
      add(p.moment2);
    }
    add(optimizer->updates());
    return bytes;
  }

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  Arena scratch{*device, MemoryCategory::workspace, 1 << 20};
  ParameterStore store;
  std::unique_ptr<Optimizer> optimizer;
};

// tools/make_adamw_golden.py computed the expected values with torch.
TEST_F(OptimizerTest, TenStepsAreTorchs) {
  const auto golden = checkpoint::SafetensorsFile::open(testing::golden_dir() + "/adamw/ten_steps.safetensors");
  start({.compute = DType::f32}, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1.0});
  const Schedule schedule{.lr = 3e-3, .steps = 10, .warmup_steps = 3, .decay = Decay::cosine, .min_lr_factor = 0.1};
  const auto load = [&](const Tensor& to, const std::string& name) {
    const Tensor from = golden.get(name);
    ASSERT_EQ(from.shape, to.shape);
    ASSERT_EQ(from.dtype, to.dtype);
    std::memcpy(to.data, from.data, to.bytes());
  };
  for (Parameter& p : store.parameters()) load(p.value, "w0." + p.spec.name);
  constexpr double limit = 1e-6;  // the project promises this; the unit roundoff is 6e-8
  for (std::uint32_t number = 1; number <= 10; ++number) {
    const std::string prefix = std::to_string(number) + ".";
    for (Parameter& p : store.parameters()) load(p.grad, prefix + "grad." + p.spec.name);
    optimizer->reset_sums(*stream);
    optimizer->loss_total()[1] = golden.get("tokens").as<double>()[number - 1];
    const double lr = learning_rate(schedule, number), torch_lr = golden.get("lr").as<double>()[number - 1];
    EXPECT_NEAR(lr, torch_lr, 32 * 0x1p-53 * schedule.lr) << "step " << number;  // torch computes each rate from the previous one
    optimizer->add_squares(*stream, scratch, store.all_units());
    optimizer->prepare(*stream, {.learning_rate = lr, .step = number});
    optimizer->update(*stream);
    const kernels::StepScalars scalars = optimizer->read(*stream);
    EXPECT_NEAR(scalars.grad_norm, golden.get("grad_norm").as<double>()[number - 1], limit * scalars.grad_norm);
    EXPECT_EQ(scalars.updates, static_cast<std::int32_t>(number));
    for (const Parameter& p : store.parameters()) {
      EXPECT_TRUE(near_norm(values_of(p.value), values_of(golden.get(prefix + "w." + p.spec.name)), limit))
          << prefix << p.spec.name;
      EXPECT_TRUE(near_norm(values_of(p.moment1), values_of(golden.get(prefix + "m." + p.spec.name)), limit))
          << prefix << p.spec.name;
      EXPECT_TRUE(near_norm(values_of(p.moment2), values_of(golden.get(prefix + "v." + p.spec.name)), limit))
          << prefix << p.spec.name;
    }
  }
}

TEST_F(OptimizerTest, ASkippedStepMovesNotOneBit) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    store = {};
    SetUp();
    start({.compute = DType::bf16, .moments = DType::bf16}, {});
    fill_gradients(1);
    step(1);
    const std::vector<std::byte> before = state();
    fill_gradients(2);
    store.parameters()[1].grad.as<float>()[3] = static_cast<float>(bad);
    step(2);
    EXPECT_EQ(*optimizer->found_inf(), 1.0f);
    EXPECT_TRUE(state() == before) << "a gradient of " << bad;
    fill_gradients(2);
    step(3, bad);
    EXPECT_EQ(*optimizer->found_inf(), 1.0f);
    EXPECT_TRUE(state() == before) << "a loss of " << bad;
    step(4);
    EXPECT_EQ(*optimizer->found_inf(), 0.0f);
    EXPECT_FALSE(state() == before);
    EXPECT_EQ(optimizer->updates().as<std::int32_t>()[0], 2) << "skipped steps do not count";
  }
}

TEST_F(OptimizerTest, ResumesFromWeightsMomentsAndUpdates) {
  start({.compute = DType::bf16, .master_weights = false, .moments = DType::bf16}, {.seed = 5});
  for (std::uint32_t number = 1; number <= 3; ++number) {
    fill_gradients(number);
    step(number);
  }
  ParameterStore other;
  std::swap(other, store);
  const std::unique_ptr<Optimizer> first = std::move(optimizer);
  SetUp();
  start({.compute = DType::bf16, .master_weights = false, .moments = DType::bf16}, {.seed = 5});
  std::memcpy(optimizer->updates().data, first->updates().data, sizeof(std::int32_t));
  for (std::size_t i = 0; i < 3; ++i) {
    Parameter &to = store.parameters()[i], &from = other.parameters()[i];
    std::memcpy(to.value.data, from.value.data, to.value.bytes());
    std::memcpy(to.moment1.data, from.moment1.data, to.moment1.bytes());
    std::memcpy(to.moment2.data, from.moment2.data, to.moment2.bytes());
  }
  fill_gradients(4);
  step(4);
  const std::vector<std::byte> resumed = state();
  std::swap(other, store);
  // `first` refers to the object `store`, which holds its own parameters again.
  optimizer = nullptr;
  fill_gradients(4);
  first->reset_sums(*stream);
  first->loss_total()[0] = 1;
  first->loss_total()[1] = 4;
  first->add_squares(*stream, scratch, store.all_units());
  first->prepare(*stream, {.learning_rate = 0.01, .step = 4});
  first->update(*stream);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bytes(store.parameters()[i].value, other.parameters()[i].value));
    EXPECT_TRUE(same_bytes(store.parameters()[i].moment1, other.parameters()[i].moment1));
    EXPECT_TRUE(same_bytes(store.parameters()[i].moment2, other.parameters()[i].moment2));
  }
  EXPECT_EQ(first->updates().as<std::int32_t>()[0], 4);
}

TEST_F(OptimizerTest, DecaysOnlyWhatIsMarked) {
  start({.compute = DType::f32}, {.weight_decay = 0.5});
  const std::vector<double> embed = values_of(store.parameters()[0].value);
  store.zero_gradients(*stream);
  step(1);
  // With zero gradients only the decay changes weights: w * (1 - lr * decay). The factor and the product are rounded once each.
  std::vector<double> expected;
  for (const double w : embed) expected.push_back(w * (1 - 0.01 * 0.5));
  EXPECT_TRUE(testing::near(store.parameters()[0].value, expected, {.relative = 0x1p-22}));
  EXPECT_TRUE(testing::near(store.parameters()[1].value, std::vector<double>(16, 1.0), {}));
}

TEST_F(OptimizerTest, MasterAndItsCopyStayTogether) {
  start({.compute = DType::bf16}, {});
  fill_gradients(1);
  step(1);
  for (const Parameter& p : store.parameters()) {
    for (std::int64_t i = 0; i < p.elements(); ++i) {
      ASSERT_EQ(p.value.as<BFloat16>()[i], BFloat16(p.master.as<float>()[i])) << p.spec.name << " " << i;
    }
  }
}

TEST_F(OptimizerTest, StepsAllocateNothingAndMetaSaysTheSame) {
  start({.compute = DType::bf16}, {});
  const std::size_t allocations = device->memory().allocations;
  stream->reset_work();  // forgets the work of initialise()
  fill_gradients(1);
  step(1);
  EXPECT_EQ(device->memory().allocations, allocations);

  const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
  const std::unique_ptr<Stream> meta_stream = meta->make_stream();
  ParameterStore described;
  for (const Parameter& p : store.parameters()) described.add(p.spec);
  described.materialise(*meta, {.compute = DType::bf16});
  Optimizer planned(*meta, described, {});
  Arena meta_scratch(*meta, MemoryCategory::workspace, 0);
  planned.reset_sums(*meta_stream);
  planned.add_squares(*meta_stream, meta_scratch, described.all_units());
  planned.prepare(*meta_stream, {.learning_rate = 0.01, .step = 1});
  planned.update(*meta_stream);
  EXPECT_EQ(planned.read(*meta_stream).step, 0u);
  EXPECT_EQ(meta_scratch.high_water(), scratch.high_water());
  const auto state_bytes = static_cast<std::size_t>(MemoryCategory::state);
  EXPECT_EQ(meta->memory().bytes[state_bytes], device->memory().bytes[state_bytes]);
  EXPECT_EQ(meta_stream->work().bytes, stream->work().bytes);
}

TEST_F(OptimizerTest, WantsGradients) {
  store.materialise(*device, {.training = false});
  EXPECT_THROW(Optimizer(*device, store, {}), Error);
}

}  // namespace
}  // namespace octet::optim
