// Tests a meta device whose queues keep time.
#include <gtest/gtest.h>

#include "octet/device/timeline.h"

namespace octet {
namespace {

// Every operation takes one second for each byte.
std::unique_ptr<Device> timed_device() {
  return make_meta_device(DeviceKind::cuda, [](const char*, const Work& work) { return work.bytes; });
}

TEST(TimedQueue, OpsTakeTheirTimeInOrder) {
  const auto device = timed_device();
  EXPECT_EQ(device->kind(), DeviceKind::meta);
  EXPECT_EQ(device->target(), DeviceKind::cuda);
  const auto queue = device->make_queue();
  queue->count("before the profile", {.bytes = 100});
  queue->start_profile();
  queue->count("a", {.bytes = 1});
  EXPECT_EQ(queue->record()->seconds(), 1);
  queue->count("b", {.bytes = 2});
  queue->count("a", {.bytes = 3});
  queue->zero(nullptr, 5);
  queue->copy(nullptr, nullptr, 5);  // copies count reading and writing
  const std::vector<OpTime> profile = queue->take_profile();
  ASSERT_EQ(profile.size(), 4u);
  EXPECT_EQ(profile[0].seconds, 4);
  EXPECT_EQ(profile[0].calls, 2);
  EXPECT_EQ(profile[1].seconds, 2);
  EXPECT_EQ(profile[2].seconds, 5);
  EXPECT_EQ(profile[3].seconds, 10);
  EXPECT_EQ(queue->record()->seconds(), 21);
}

TEST(TimedQueue, QueuesRunBesideEachOtherAndWait) {
  const auto device = timed_device();
  const auto compute = device->make_queue(), wire = device->make_queue();
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
  // Profiles do not count the time that a queue waits.
  EXPECT_EQ(compute->take_profile().front().seconds, 6);
  const std::vector<OpTime> sent = wire->take_profile();
  EXPECT_EQ(sent[0].seconds, 5);
  EXPECT_EQ(sent[1].seconds, 1);
  // The clocks continue in the next profile.
  compute->start_profile();
  compute->count("product", {.bytes = 1});
  EXPECT_EQ(compute->record()->seconds(), 10);
}

TEST(TimedQueue, ProfilesTellGroupsApart) {
  const auto device = timed_device();
  const auto queue = device->make_queue();
  queue->start_profile();
  queue->count("all_gather", {.bytes = 1, .group = "shard"});
  queue->count("all_gather", {.bytes = 2, .group = "context"});
  queue->count("all_gather", {.bytes = 4, .group = "shard", .joins = true});
  const std::vector<OpTime> profile = queue->take_profile();
  ASSERT_EQ(profile.size(), 2u);
  EXPECT_EQ(profile[0].work.group, "shard");
  EXPECT_EQ(profile[0].work.bytes, 5);
  EXPECT_EQ(profile[1].work.bytes, 2);
}

TEST(TimedQueue, RangesBeginWithTheirFirstOpThatTakesTime) {
  Timeline timeline;
  const auto device = make_meta_device(
      DeviceKind::cuda, [](const char*, const Work& work) { return work.bytes; }, timeline);
  const auto compute = device->make_queue(), wire = device->make_queue();
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
    EXPECT_EQ(timeline[i].queue, compute.get());
    EXPECT_EQ(timeline[i].begin, 5);  // not 2, when the wait begins
    EXPECT_EQ(timeline[i].end, 8);
  }
  EXPECT_EQ(timeline[2].queue, wire.get());
  EXPECT_EQ(timeline[2].begin, 5);
  EXPECT_EQ(timeline[2].end, 6);
}

}  // namespace
}  // namespace octet
