// The device of tests/support/deferred_device.h shows a missing wait, and nothing else.
#include "support/deferred_device.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"

namespace octet::testing {
namespace {

// Returns what a copy on the second stream reads of a number that becomes 1 and later 2 on the first.
int copied(DeferredDevice& device, bool waits, bool is_waited_for) {
  const std::unique_ptr<Stream> compute = device.make_stream(), other = device.make_stream();
  const Buffer memory = device.allocate(2 * sizeof(int), MemoryCategory::workspace);
  auto* const numbers = static_cast<int*>(memory.data());
  const auto write = [&](int number) { compute->call([=] { numbers[0] = number; }); };
  write(1);
  if (waits) other->wait(*compute->record());
  other->copy(numbers + 1, numbers, sizeof(int));
  if (is_waited_for) compute->wait(*other->record());
  write(2);
  device.finish();
  return numbers[1];
}

TEST(DeferredDevice, ShowsAMissingWait) {
  for (const double others_first : {0.0, 1.0}) {
    DeferredDevice device(others_first);
    EXPECT_EQ(copied(device, true, true), 1);
  }
  DeferredDevice early(1), late(0);
  EXPECT_EQ(copied(early, false, true), 0);
  EXPECT_EQ(copied(late, true, false), 2);
  EXPECT_GT(early.overtakings(), 0);
  EXPECT_GT(late.overtakings(), 0);
}

TEST(DeferredDevice, ReadsMemoryAsTheContractOfStreamsSays) {
  DeferredDevice device(0.5);
  const std::unique_ptr<Stream> stream = device.make_stream();
  const Buffer locked = device.allocate(sizeof(int), MemoryCategory::host),
               memory = device.allocate(512, MemoryCategory::workspace);
  auto* const numbers = static_cast<int*>(memory.data());
  int number = 1, result = 0;
  auto& locked_number = *static_cast<int*>(locked.data());
  stream->copy_to_device(numbers, &number, sizeof number);
  stream->copy_to_device(numbers + 1, &locked_number, sizeof number);
  number = locked_number = 2;
  stream->copy_to_host(&result, numbers, sizeof result);
  EXPECT_EQ(result, 0);
  stream->synchronize();
  EXPECT_EQ(result, 1) << "memory may change when the call has returned";
  EXPECT_EQ(numbers[1], 2) << "memory that is locked must stay until the copy is done";
}

// As on a GPU.
TEST(DeferredDevice, ExecutesEverythingBeforeItFreesMemory) {
  DeferredDevice device(0.5);
  const std::unique_ptr<Stream> stream = device.make_stream();
  int calls = 0;
  {
    const Buffer memory = device.allocate(sizeof(int), MemoryCategory::workspace);
    stream->call([&] { ++calls; });
    EXPECT_EQ(calls, 0);
  }
  EXPECT_EQ(calls, 1);
}

TEST(Stream, CallsFunctionsOnTheCpuAlone) {
  int calls = 0;
  make_device(DeviceKind::cpu)->make_stream()->call([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  const auto meta = make_device(DeviceKind::meta);
  EXPECT_THROW(meta->make_stream()->call([&] { ++calls; }), Error);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace octet::testing
