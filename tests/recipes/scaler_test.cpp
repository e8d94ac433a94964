#include "octet/recipes/scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "octet/base/require.h"
#include "octet/recipes/registry.h"
#include "support/near.h"

namespace octet::recipes {
namespace {

using testing::values_of;
using Values = std::vector<double>;

struct Scaler : ::testing::Test {
  void make(const Options& options) {
    state = std::make_unique<ScaleState>(make_recipe("fp8_delayed", options));
    x = state->add("a", Role::activation);
    w = state->add("a", Role::weight);
    g = state->add("b.fused", Role::gradient);
    state->materialise(*stream);
  }
  void record(int index, float amax) { *state->slot(index).amax = amax; }
  void update(float found_inf = 0.0f) { state->update(*stream, &found_inf); }
  float scale(int index) const { return *state->slot(index).scale; }
  Values history(int index) const { return values_of(state->tensors()[static_cast<std::size_t>(2 * index + 1)].tensor); }

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  std::unique_ptr<ScaleState> state;
  int x = -1, w = -1, g = -1;
};

TEST_F(Scaler, NamesItsStateAsCheckpointsHoldIt) {
  make({.amax_history_len = 3});
  const char* expected[] = {"fp8.a.x.scale",        "fp8.a.x.amax_history", "fp8.a.w.scale",
                            "fp8.a.w.amax_history", "fp8.b.fused.g.scale",  "fp8.b.fused.g.amax_history"};
  const auto tensors = state->tensors();
  ASSERT_EQ(tensors.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(tensors[i].name, expected[i]);
    EXPECT_EQ(tensors[i].tensor.dtype, DType::f32);
    EXPECT_EQ(tensors[i].tensor.shape, (i % 2 ? Shape{3} : Shape{1}));
    EXPECT_EQ(values_of(tensors[i].tensor), (i % 2 ? Values{0, 0, 0} : Values{1})) << "scales start at 1, histories at 0";
  }
  // A slot points into the tensors that checkpoints save.
  record(g, 5.0f);
  EXPECT_EQ(history(g), (Values{5, 0, 0}));
  EXPECT_EQ(state->slot(g).scale, tensors[4].tensor.data);
}

TEST_F(Scaler, AResetForgetsAllAmaxes) {
  make({.amax_history_len = 3});
  for (const float amax : {2.0f, 4.0f}) {
    for (const int index : {x, w, g}) record(index, amax);
    update();
  }
  record(x, 8.0f);
  state->reset(*stream);
  for (const int index : {x, w, g}) {
    EXPECT_EQ(scale(index), 1.0f);
    EXPECT_EQ(history(index), (Values{0, 0, 0}));
  }
}

TEST_F(Scaler, ScalesAreOfTheFormatOfTheOperandAndTheLargestOfTheHistory) {
  make({.amax_history_len = 3});
  record(x, 2.0f);
  record(w, 4.0f);
  record(g, 8.0f);
  update();
  EXPECT_EQ(scale(x), 448.0f / 2);
  EXPECT_EQ(scale(w), 448.0f / 4);
  EXPECT_EQ(scale(g), 57344.0f / 8);
  EXPECT_EQ(history(x), (Values{0, 2, 0})) << "rolled; the next step starts at 0";
  record(x, 1.0f);
  update();
  EXPECT_EQ(scale(x), 448.0f / 2) << "the largest still in the history";
  EXPECT_EQ(history(x), (Values{0, 1, 2}));
  record(x, 1.5f);
  update();
  EXPECT_EQ(scale(x), 448.0f / 2) << "the history holds three with this step's";
  record(x, 0.5f);
  update();
  EXPECT_EQ(scale(x), 448.0f / 1.5f) << "2 dropped out";
  EXPECT_EQ(history(x), (Values{0, 0.5, 1.5}));
}

TEST_F(Scaler, MostRecentAndMargin) {
  make({.format = "e4m3", .amax_history_len = 2, .amax_compute_algo = "most_recent", .margin = 2});
  record(x, 4.0f);
  record(g, 4.0f);
  update();
  record(x, 3.0f);
  record(g, 16.0f);
  update();
  EXPECT_EQ(scale(x), 112.0f / 3.0f);
  EXPECT_EQ(scale(g), 112.0f / 16.0f);
}

TEST_F(Scaler, ASkippedStepChangesNoBit) {
  make({.amax_history_len = 3});
  record(x, 2.0f);
  record(w, 4.0f);
  record(g, 8.0f);
  update();
  record(w, 4.5f);  // recorded by the cast at the end of the step
  const auto state_bits = [&] {
    std::vector<Values> bits;
    for (const auto& named : state->tensors()) bits.push_back(values_of(named.tensor));
    return bits;
  };
  const auto before = state_bits();
  record(x, 100.0f);
  record(g, std::numeric_limits<float>::infinity());
  update(1.0f);
  EXPECT_EQ(state_bits(), before);
}

TEST_F(Scaler, AnAmaxThatIsZeroOrNotFiniteIsNotEntered) {
  make({.amax_history_len = 3});
  record(x, 2.0f);
  record(w, 4.0f);
  record(g, 8.0f);
  update();
  for (const float bad : {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    record(x, bad);
    record(w, 5.0f);
    record(g, bad);
    update();
    EXPECT_EQ(scale(x), 224.0f);
    EXPECT_EQ(history(x), (Values{0, 2, 0})) << "neither rolled nor entered: " << bad;
    EXPECT_EQ(history(g), (Values{0, 8, 0}));
    EXPECT_EQ(scale(w), 448.0f / 5) << "others move on";
  }
}

TEST_F(Scaler, TakesNoMemoryWithoutHistory) {
  make({});
  const std::size_t some = device->memory().bytes[static_cast<std::size_t>(MemoryCategory::state)];
  EXPECT_GE(some, 3 * (1024 + 1) * sizeof(float));
  state.reset();
  ScaleState none(make_recipe("fp8_current", {}));
  none.materialise(*stream);
  EXPECT_EQ(device->memory().bytes[static_cast<std::size_t>(MemoryCategory::state)], 0u);
  EXPECT_TRUE(none.tensors().empty());
  EXPECT_EQ(none.slot(-1).scale, nullptr);
  const float no = 0;
  none.update(*stream, &no);
}

TEST_F(Scaler, IsRegisteredBeforeItIsMaterialised) {
  make({});
  EXPECT_THROW(state->add("c", Role::activation), Error);
  ScaleState early(make_recipe("fp8_delayed", {}));
  EXPECT_THROW(early.slot(early.add("a", Role::weight)), Error);
}

// The amaxes of an expert's operands are exchanged only between the ranks that hold the expert.
TEST(ScalerOfExperts, IsExchangedBetweenTheRanksThatHoldIt) {
  const auto meta = make_device(DeviceKind::meta);
  const auto stream = meta->make_stream();
  ScaleState state(make_recipe("fp8_delayed", {.amax_history_len = 2}));
  state.add("dense", Role::activation);
  const int theirs = state.add("expert.0", Role::activation, HeldBy::elsewhere);
  const int ours = state.add("expert.1", Role::activation, HeldBy::some);
  state.add("expert.1", Role::gradient, HeldBy::some);
  const int last = state.add("head", Role::weight);
  state.add("head", Role::gradient);

  Arena scratch(*meta, MemoryCategory::workspace, 1 << 10);
  state.materialise(*stream);
  EXPECT_EQ(state.slot(theirs).amax, nullptr);
  EXPECT_EQ(state.slot(theirs).scale, nullptr);
  EXPECT_NE(state.slot(ours).amax, state.slot(last).amax);
  const auto tensors = state.tensors();
  ASSERT_EQ(tensors.size(), 12u) << "names of all";
  EXPECT_EQ(tensors[3].name, "fp8.expert.0.x.amax_history");
  EXPECT_EQ(tensors[3].tensor.shape, Shape{2});
  EXPECT_FALSE(tensors[3].tensor);
  EXPECT_EQ(tensors[4].name, "fp8.expert.1.x.scale");
  EXPECT_EQ(tensors[4].tensor.data, state.slot(ours).scale);

  const auto same = comm::make_silent_group("same", 0, 2), all = comm::make_silent_group("all", 0, 2),
             some = comm::make_silent_group("some", 0, 2);
  state.reduce(*stream, scratch, {{same.get(), same.get()}, {all.get(), some.get()}});
  // In a group of two ranks, an all-reduce sends every element once.
  EXPECT_EQ(same->traffic().bytes, 5 * sizeof(float));
  EXPECT_EQ(all->traffic().bytes, 3 * sizeof(float));
  EXPECT_EQ(some->traffic().bytes, 2 * sizeof(float));
}

}  // namespace
}  // namespace octet::recipes
