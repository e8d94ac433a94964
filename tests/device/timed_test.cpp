// Tests a meta device whose streams keep time.
#include <gtest/gtest.h>

#include "octet/device/timeline.h"

namespace octet {
namespace {

// Every operation takes one second for each byte.
std::unique_ptr<Device> timed_device() {
  return make_meta_device(DeviceKind::cuda, [](const char*, const Work& work) { return work.bytes; });
}

TEST(TimedStream, OpsTakeTheirTimeInOrder) {
  const auto device = timed_device();
  EXPECT_EQ(device->kind(), DeviceKind::meta);
  EXPECT_EQ(device->target(), DeviceKind::cuda);
  const auto stream = device->make_stream();
  stream->count("before the profile", {.bytes = 100});
  stream->start_profile();
  stream->count("a", {.bytes = 1});
  EXPECT_EQ(stream->record()->seconds(), 1);
  stream->count("b", {.bytes = 2});
  stream->count("a", {.bytes = 3});
  stream->zero(nullptr, 5);
  stream->copy(nullptr, nullptr, 5);  // copies count reading and writing
  const std::vector<OpTime> profile = stream->take_profile();
  ASSERT_EQ(profile.size(), 4u);
  EXPECT_EQ(profile[0].seconds, 4);
  EXPECT_EQ(profile[0].calls, 2);
  EXPECT_EQ(profile[1].seconds, 2);
  EXPECT_EQ(profile[2].seconds, 5);
  EXPECT_EQ(profile[3].seconds, 10);
  EXPECT_EQ(stream->record()->seconds(), 21);
}

TEST(TimedStream, StreamsRunBesideEachOtherAndWait) {
  const auto device = timed_device();
  const auto compute = device->make_stream(), wire = device->make_stream();
  compute->start_profile();
  wire->start_profile();
  wire->count("gather", {.bytes = 5});
  const auto gathered = wire->record();
  compute->count("product", {.bytes = 2});
  compute->wait(*gathered);  // waits from 2 until 5
  compute->count("product", {.bytes = 4});
  const auto computed = compute->record();
  EXPECT_EQ(computed->seconds(), 9);
  wire->wait(*computed);
  compute->wait(*gathered);  // has ended long ago
  wire->count("reduce", {.bytes = 1});
  EXPECT_EQ(wire->record()->seconds(), 10);
  EXPECT_EQ(compute->record()->seconds(), 9);
  // Profiles do not count the time that a stream waits.
  EXPECT_EQ(compute->take_profile().front().seconds, 6);
  const std::vector<OpTime> sent = wire->take_profile();
  EXPECT_EQ(sent[0].seconds, 5);
  EXPECT_EQ(sent[1].seconds, 1);
  // The clocks continue in the next profile.
  compute->start_profile();
  compute->count("product", {.bytes = 1});
  EXPECT_EQ(compute->record()->seconds(), 10);
}

TEST(TimedStream, ProfilesTellGroupsApart) {
  const auto device = timed_device();
  const auto stream = device->make_stream();
  stream->start_profile();
  stream->count("all_gather", {.bytes = 1, .group = "shard"});
  stream->count("all_gather", {.bytes = 2, .group = "context"});
  stream->count("all_gather", {.bytes = 4, .group = "shard", .joins = true});
  const std::vector<OpTime> profile = stream->take_profile();
  ASSERT_EQ(profile.size(), 2u);
  EXPECT_EQ(profile[0].work.group, "shard");
  EXPECT_EQ(profile[0].work.bytes, 5);
  EXPECT_EQ(profile[1].work.bytes, 2);
}

TEST(TimedStream, RangesBeginWithTheirFirstOpThatTakesTime) {
  Timeline timeline;
  const auto device = make_meta_device(
      DeviceKind::cuda, [](const char*, const Work& work) { return work.bytes; }, timeline);
  const auto compute = device->make_stream(), wire = device->make_stream();
  compute->start_profile();
  wire->start_profile();
  wire->count("gather", {.bytes = 5});
  const auto gathered = wire->record();
  compute->count("product", {.bytes = 2});
  {
    const TraceRange outer(*compute, "outer");
    const TraceRange inner(*compute, "inner");
    compute->count("wait for ranks", {});
    compute->wait(*gathered);
    compute->count("product", {.bytes = 3});
  }
  { const TraceRange empty(*compute, "empty"); }
  {
    const TraceRange range(*wire, "reduce");
    wire->count("reduce", {.bytes = 1});
  }
  ASSERT_EQ(timeline.size(), 3u);
  for (const std::size_t i : {0, 1}) {
    EXPECT_EQ(timeline[i].name, i == 0 ? "inner" : "outer");
    EXPECT_EQ(timeline[i].stream, compute.get());
    EXPECT_EQ(timeline[i].begin, 5);  // not 2, when the wait begins
    EXPECT_EQ(timeline[i].end, 8);
  }
  EXPECT_EQ(timeline[2].stream, wire.get());
  EXPECT_EQ(timeline[2].begin, 5);
  EXPECT_EQ(timeline[2].end, 6);
}

}  // namespace
}  // namespace octet
