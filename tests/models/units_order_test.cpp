// In which order a step gathers, computes and reduces: on a device that writes it down instead.
#include <gtest/gtest.h>

#include <algorithm>

#include "octet/models/decoder/decoder.h"
#include "octet/recipes/registry.h"

namespace octet::models {
namespace {

using Log = std::vector<std::string>;

class LoggingQueue final : public Queue {
 public:
  LoggingQueue(Device& device, Log& log) : Queue(device), log_(log) {}
  std::unique_ptr<Event> record() override { return std::make_unique<Event>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}
  void begin_range(const std::string& name) override { log_.push_back(name); }

 protected:
  void stamp() override {}
  std::vector<double> take_stamps() override { return {}; }

 private:
  Log& log_;
};

class LoggingDevice final : public Device {
 public:
  explicit LoggingDevice(Log& log) : log_(log) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<LoggingQueue>(*this, log_); }

 protected:
  void* acquire(std::size_t) override { return reinterpret_cast<void*>(std::uintptr_t{1} << 40); }
  void release(void*, std::size_t) override {}

 private:
  Log& log_;
};

DecoderConfig config_of(bool tied) {
  DecoderConfig config;
  config.vocab = 256;
  config.dim = 64;
  config.ffn = 128;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_position = 64;
  config.tied_head = tied;
  return config;
}

// Of a step of two micro-batches on four parts.
Log log_of_step(parallel::Weights weights, parallel::Gradients gradients, bool tied = false) {
  Log log;
  LoggingDevice device(log);
  const auto queue = device.make_queue();
  const parallel::Layout layout{.mesh = parallel::Mesh({1, 4, 1, 1}), .weights = weights, .gradients = gradients};
  const parallel::Groups groups = parallel::silent_groups(layout.mesh, 0);
  Decoder model(config_of(tied), recipes::make_recipe("fp8_delayed", {}));
  model.materialise(*queue, {}, 64, groups, layout);
  Arena stash(device, MemoryCategory::activations, 0), scratch(device, MemoryCategory::workspace, 0);
  const nn::Scope scope{
      .queue = *queue, .stash = stash, .scratch = scratch, .context = *groups.context, .tensor = *groups.tensor};
  const Buffer ids = device.allocate(64 * 4, MemoryCategory::workspace);
  const Batch batch{.seq_len = 64, .tokens = view(ids, DType::i32, {64}), .targets = view(ids, DType::i32, {64})};
  double total[2];
  model.units().refresh(scratch);
  model.units().begin_step(2);
  for (int micro = 0; micro < 2; ++micro) model.forward_backward(scope, batch, total);
  model.units().finish_gradients(scratch);
  return log;
}

std::ptrdiff_t count(const Log& log, const std::string& what) { return std::count(log.begin(), log.end(), what); }

// Units: 0 the embedding, 1 to 3 the blocks, 4 the head.
TEST(UnitsOrder, TheNextUnitIsGatheredBeforeAnyIsComputed) {
  const Log log = log_of_step(parallel::Weights::resharded, parallel::Gradients::sharded);
  const Log once = {
      "layer 0 forward",  //
      "gather unit 3",
      "layer 1 forward",  //
      "gather unit 4",
      "layer 2 forward",  //
      "head",             //
      "layer 2 backward",
      "reduce unit 4",  // the last two blocks are still there
      "gather unit 1",
      "layer 1 backward",
      "reduce unit 3",
  };
  Log expected = {"gather unit 0", "gather unit 1", "gather unit 2"};
  expected.insert(expected.end(), once.begin(), once.end());
  expected.insert(expected.end(), {"gather unit 0", "layer 0 backward", "reduce unit 2", "reduce unit 1"});
  expected.insert(expected.end(), {"reduce unit 0"});         // which no attention follows
  expected.insert(expected.end(), once.begin(), once.end());  // the first two blocks are still there
  expected.insert(expected.end(), {"layer 0 backward", "reduce unit 2", "reduce unit 1", "reduce unit 0"});
  EXPECT_EQ(log, expected);
}

TEST(UnitsOrder, WhatIsKeptIsGatheredAndReducedOnceAStep) {
  const Log log = log_of_step(parallel::Weights::kept, parallel::Gradients::whole);
  for (int unit = 0; unit < 5; ++unit) {
    EXPECT_EQ(count(log, concat("gather unit ", unit)), 1) << unit;
    EXPECT_EQ(count(log, concat("reduce unit ", unit)), 1) << unit;
  }
  // Behind the last backward.
  EXPECT_GT(std::find(log.begin(), log.end(), "reduce unit 4") - log.begin(),
            std::find(log.begin(), log.end(), "layer 0 backward") - log.begin());
}

// Embedding, norm and head are one unit, held until the embedding has added its part of the gradient.
TEST(UnitsOrder, ATiedHeadIsReducedWithTheEmbedding) {
  const Log log = log_of_step(parallel::Weights::resharded, parallel::Gradients::sharded, true);
  EXPECT_EQ(count(log, "gather unit 0"), 1);
  EXPECT_EQ(count(log, "reduce unit 0"), 2);
  EXPECT_EQ(log.back(), "reduce unit 0");
}

}  // namespace
}  // namespace octet::models
