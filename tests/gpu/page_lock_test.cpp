#include "octet/device/page_lock.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "gpu/twins.h"

namespace octet {
namespace {

// Shared memory, as that of snapshots.
TEST(PageLockGpuTest, CopiesArriveInEveryStretch) {
  const std::unique_ptr<Device> gpu = make_device(DeviceKind::cuda);
  const std::unique_ptr<Stream> stream = gpu->make_stream();
  constexpr std::size_t kBytes = 5 * PageLock::kStretch / 2;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::vector<std::uint32_t> wanted(kBytes / sizeof(std::uint32_t));
  std::iota(wanted.begin(), wanted.end(), 1);
  const Buffer buffer = gpu->allocate(kBytes, MemoryCategory::workspace);
  stream->copy_to_device(buffer.data(), wanted.data(), kBytes);
  {
    const PageLock lock(*gpu, memory, kBytes);
    for (std::size_t begin = 0; begin < kBytes; begin += PageLock::kStretch) {
      stream->copy_to_host(static_cast<std::byte*>(memory) + begin, static_cast<std::byte*>(buffer.data()) + begin,
                           std::min(kBytes - begin, PageLock::kStretch));
    }
    stream->synchronize();
  }
  const std::span<const std::uint32_t> found(static_cast<const std::uint32_t*>(memory), wanted.size());
  EXPECT_TRUE(std::equal(found.begin(), found.end(), wanted.begin()));
  ::munmap(memory, kBytes);
}

// What is copied to the device from ordinary memory may change when the call returns, however large it is.
TEST(StreamGpuTest, OrdinaryMemoryMayChangeBehindItsCopy) {
  const std::unique_ptr<Device> gpu = make_device(DeviceKind::cuda);
  const std::unique_ptr<Stream> stream = gpu->make_stream();
  for (const std::size_t bytes : {std::size_t{4}, (std::size_t{32} << 20) + 1}) {
    std::vector<char> host(bytes, 'x'), back(bytes);
    const Buffer slow = gpu->allocate(std::size_t{1} << 30, MemoryCategory::workspace);
    const Buffer buffer = gpu->allocate(bytes, MemoryCategory::workspace);
    for (int i = 0; i < 20; ++i) stream->zero(slow.data(), slow.bytes());  // the GPU is busy when the copy is enqueued
    stream->copy_to_device(buffer.data(), host.data(), bytes);
    std::fill(host.begin(), host.end(), 'y');
    stream->copy_to_host(back.data(), buffer.data(), bytes);
    stream->synchronize();
    EXPECT_EQ(std::count(back.begin(), back.end(), 'x'), static_cast<std::ptrdiff_t>(bytes));
  }
}

}  // namespace
}  // namespace octet
