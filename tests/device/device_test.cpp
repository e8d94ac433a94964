#include "octet/device/device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "octet/base/require.h"
#include "octet/device/arena.h"
#include "support/errors.h"

namespace octet {
namespace {

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % Device::kAlignment == 0; }

class Devices : public ::testing::TestWithParam<DeviceKind> {
 protected:
  std::unique_ptr<Device> device_ = make_device(GetParam());
};

// The meter counts sizes in whole units of kAlignment, on every kind of device.
TEST_P(Devices, TheMeterCountsByCategoryUntilBuffersDie) {
  const MemoryMeter& meter = device_->memory();
  const auto bytes = [&](MemoryCategory category) { return meter.bytes[static_cast<std::size_t>(category)]; };
  EXPECT_EQ(device_->kind(), GetParam());
  {
    Buffer weights = device_->allocate(1000, MemoryCategory::weights);
    EXPECT_TRUE(aligned(weights.data()));
    EXPECT_EQ(weights.bytes(), 1024u);
    {
      const Buffer moments = device_->allocate(512, MemoryCategory::moments);
      EXPECT_EQ(bytes(MemoryCategory::weights), 1024u);
      EXPECT_EQ(bytes(MemoryCategory::moments), 512u);
      EXPECT_EQ(meter.total, 1536u);
    }
    EXPECT_EQ(bytes(MemoryCategory::moments), 0u);
    Buffer moved = std::move(weights);
    EXPECT_EQ(meter.total, 1024u);
    {
      Buffer other = device_->allocate(1, MemoryCategory::state);
      other = std::move(moved);
      EXPECT_EQ(other.bytes(), 1024u);
      EXPECT_EQ(meter.total, 1280u);
    }
  }
  EXPECT_EQ(meter.total, 0u);
  EXPECT_EQ(meter.total_peak, 1536u);
  EXPECT_EQ(meter.peak[static_cast<std::size_t>(MemoryCategory::moments)], 512u);
  EXPECT_EQ(meter.allocations, 3u);
}

TEST_P(Devices, ArenasGiveAndTakeBackInOrder) {
  Arena arena(*device_, MemoryCategory::workspace, 4096);
  void* first = arena.allocate(1);
  EXPECT_TRUE(aligned(first));
  EXPECT_EQ(arena.used(), Device::kAlignment);
  void* second = nullptr;
  {
    const ArenaScope scope(arena);
    second = arena.allocate(300);
    EXPECT_EQ(static_cast<char*>(second) - static_cast<char*>(first), static_cast<std::ptrdiff_t>(Device::kAlignment));
    {
      const ArenaScope inner(arena);
      arena.allocate(1024);
      EXPECT_EQ(arena.used(), 256u + 512u + 1024u);
    }
    EXPECT_EQ(arena.used(), 256u + 512u);
  }
  EXPECT_EQ(arena.used(), 256u);
  EXPECT_EQ(arena.high_water(), 1792u);
  EXPECT_EQ(arena.allocate(8), second);  // gets the same place again
  EXPECT_THROW(arena.release_to(100000), Error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Devices, ::testing::Values(DeviceKind::cpu, DeviceKind::meta),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(CpuDevice, MemoryIsZeroAndCopiesAreDone) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  const Buffer a = device->allocate(10000, MemoryCategory::workspace), b = device->allocate(10000, MemoryCategory::workspace);
  for (std::size_t i = 0; i < 10000; ++i) ASSERT_EQ(static_cast<const char*>(a.data())[i], 0);
  std::vector<char> host(10000, 'x'), back(10000);
  stream->copy_to_device(a.data(), host.data(), host.size());
  host.assign(host.size(), 'y');  // it may change now
  stream->copy(b.data(), a.data(), 9999);
  stream->copy_to_host(back.data(), b.data(), back.size());
  stream->synchronize();
  EXPECT_EQ(back[9998], 'x');
  EXPECT_EQ(back[9999], 0);
  stream->zero(b.data(), 5);
  EXPECT_EQ(static_cast<const char*>(b.data())[4], 0);
  EXPECT_EQ(static_cast<const char*>(b.data())[5], 'x');
  stream->wait(*stream->record());
}

TEST(CpuDevice, RefusesWhatDoesNotFit) {
  const auto device = make_device(DeviceKind::cpu);
  testing::error_of(ExitCode::does_not_fit, [&] { device->allocate(std::size_t{1} << 60, MemoryCategory::weights); });
  EXPECT_EQ(device->memory().total, 0u);
}

TEST(CpuDevice, AFullArenaSaysSo) {
  const auto device = make_device(DeviceKind::cpu);
  Arena arena(*device, MemoryCategory::workspace, 512);
  arena.allocate(512);
  EXPECT_THROW(arena.allocate(1), Error);
  EXPECT_EQ(arena.used(), 512u);
}

TEST(MetaDevice, HoldsNothingHoweverMuchIsAsked) {
  const auto device = make_device(DeviceKind::meta);
  const auto stream = device->make_stream();
  const Buffer huge = device->allocate(std::size_t{1} << 45, MemoryCategory::weights);
  const Buffer next = device->allocate(64, MemoryCategory::weights);
  EXPECT_NE(huge.data(), next.data());
  EXPECT_EQ(device->memory().total, (std::size_t{1} << 45) + Device::kAlignment);
  char byte = 'x';
  stream->copy_to_device(huge.data(), &byte, 1);  // the meta device does not access memory
  stream->copy_to_host(&byte, huge.data(), 1);
  stream->zero(huge.data(), std::size_t{1} << 45);
  stream->synchronize();
  EXPECT_EQ(byte, 'x');
}

TEST(MetaDevice, AnArenaHasNoLimitAndItsHighWaterMarkIsTheCapacityToGive) {
  const auto meta = make_device(DeviceKind::meta);
  const auto cpu = make_device(DeviceKind::cpu);
  const auto play = [](Arena& arena) {
    arena.allocate(100);
    {
      const ArenaScope scope(arena);
      arena.allocate(100000);
    }
    arena.allocate(5000);
    return arena.high_water();
  };
  Arena measuring(*meta, MemoryCategory::workspace, 0);
  const std::size_t needed = play(measuring);
  Arena exact(*cpu, MemoryCategory::workspace, needed);
  EXPECT_EQ(play(exact), needed);
  Arena short_by_one(*cpu, MemoryCategory::workspace, needed - Device::kAlignment);
  EXPECT_THROW(play(short_by_one), Error);
}

// Accessing memory of the meta device faults at once. It never reads memory that belongs to something else.
TEST(MetaDeviceDeathTest, ItsAddressesFault) {
  const auto device = make_device(DeviceKind::meta);
  const Buffer buffer = device->allocate(64, MemoryCategory::weights);
  EXPECT_DEATH(
      {
        volatile char* p = static_cast<char*>(buffer.data());
        *p = 1;
      },
      "");
}

TEST(Stream, AddsUpWork) {
  const auto device = make_device(DeviceKind::meta);
  const auto stream = device->make_stream();
  stream->count("op", {.flops = 10, .fp8_flops = 4, .bytes = 3});
  stream->count("op", {.flops = 5, .fp8_flops = 0, .bytes = 1});
  EXPECT_EQ(stream->work().flops, 15);
  EXPECT_EQ(stream->work().fp8_flops, 4);
  EXPECT_EQ(stream->work().bytes, 4);
  stream->reset_work();
  EXPECT_EQ(stream->work().flops, 0);
}

TEST(CudaDevice, IsRefusedInASentenceWhereItIsAbsent) {
  try {
    make_device(DeviceKind::cuda);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos) << error.what();
  }
}

TEST(Profile, AddsUpCallsOfOneNameAndShape) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  stream->count("before", {.flops = 1});
  stream->start_profile();
  stream->count("gemm", {.flops = 2, .shape = {1, 2, 3}});
  stream->count("norm", {.bytes = 4});
  stream->count("gemm", {.flops = 2, .shape = {1, 2, 3}});
  stream->count("gemm", {.flops = 5, .shape = {1, 2, 4}});
  const std::vector<OpTime> profile = stream->take_profile();
  ASSERT_EQ(profile.size(), 3u);
  EXPECT_EQ(std::string(profile[0].op), "gemm");
  EXPECT_EQ(profile[0].calls, 2);
  EXPECT_EQ(profile[0].work.flops, 4.0);
  EXPECT_EQ(profile[0].work.shape[2], 3);
  EXPECT_EQ(std::string(profile[1].op), "norm");
  EXPECT_EQ(profile[2].work.flops, 5.0);
  for (const OpTime& t : profile) EXPECT_GE(t.seconds, 0.0);
  stream->count("after", {.flops = 1});
  stream->start_profile();
  EXPECT_TRUE(stream->take_profile().empty());
}

// A stream whose clock gives out a list of moments, one at a time.
class ScriptedStream final : public Stream {
 public:
  ScriptedStream(Device& device, std::vector<double> moments) : Stream(device), moments_(std::move(moments)) {}
  std::unique_ptr<Event> record() override { return std::make_unique<Event>(); }
  void wait(const Event&) override { ++waits; }
  void synchronize() override {}
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}
  std::size_t stamped = 0;
  int waits = 0;

 protected:
  void stamp() override { stamps_.push_back(moments_.at(stamped++)); }
  std::vector<double> take_stamps() override { return std::exchange(stamps_, {}); }

 private:
  std::vector<double> moments_, stamps_;
};

TEST(Waits, AreAddedUpWhileTheyAreWatched) {
  const auto device = make_device(DeviceKind::cpu);
  ScriptedStream stream(*device, {1, 1.5, 10, 14, 100, 100.25});
  const auto event = stream.record();
  stream.wait_for_ranks(*event);
  EXPECT_EQ(stream.stamped, 0u) << "it costs nothing while nobody watches";
  stream.start_waits();
  stream.wait_for_ranks(*event);  // from 1 to 1.5
  stream.begin_wait();            // from 10 to 14, which includes the waits within
  stream.count("all_reduce", {.bytes = 1});
  stream.wait_for_ranks(*event);
  stream.end_wait();
  const Waits waits = stream.take_waits();
  EXPECT_EQ(waits.all, 4.5);
  EXPECT_EQ(waits.stages, 0);
  stream.begin_wait();
  stream.end_wait();
  EXPECT_EQ(stream.stamped, 4u);
  EXPECT_EQ(stream.waits, 3);

  // A wait that an exception left open must not count in the next measurement.
  stream.start_waits();
  stream.begin_wait();  // begins at 100
  stream.start_waits();
  EXPECT_EQ(stream.take_waits().all, 0);
}

TEST(Waits, ThoseForOtherStagesAreAPartOfAll) {
  const auto device = make_device(DeviceKind::cpu);
  ScriptedStream stream(*device, {1, 1.5, 10, 14, 20, 20.25, 30, 38});
  const auto event = stream.record();
  stream.start_waits();
  stream.wait_for_ranks(*event);  // from 1 to 1.5
  {
    const StageWaits of_stages(stream);
    stream.begin_wait();  // from 10 to 14
    stream.wait_for_ranks(*event);
    stream.end_wait();
    { const StageWaits nested(stream); }
    stream.wait_for_ranks(*event);  // from 20 to 20.25
  }
  stream.begin_wait();  // from 30 to 38: the outermost wait says for whom
  {
    const StageWaits of_stages(stream);
    stream.wait_for_ranks(*event);
  }
  stream.end_wait();
  const Waits waits = stream.take_waits();
  EXPECT_EQ(waits.all, 12.75);
  EXPECT_EQ(waits.stages, 4.25);
}

TEST(Waits, AProfileShowsThemAsAnOpAndIsNotTakenBesideThem) {
  const auto device = make_device(DeviceKind::cpu);
  const auto stream = device->make_stream();
  stream->start_profile();
  stream->wait_for_ranks(*stream->record());
  EXPECT_THROW(stream->start_waits(), std::exception);
  const std::vector<OpTime> profile = stream->take_profile();
  ASSERT_EQ(profile.size(), 1u);
  EXPECT_EQ(std::string(profile[0].op), "wait for ranks");
  stream->start_waits();
  EXPECT_THROW(stream->start_profile(), std::exception);
}

}  // namespace
}  // namespace octet
