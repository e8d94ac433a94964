// A rank that is a thread of this process, with its device, streams, memory and group.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/transport.h"
#include "octet/device/arena.h"
#include "octet/tensor/tensor.h"
#include "support/ranks.h"
#include "support/thread_group.h"

namespace octet::testing {

struct GroupRank {
  struct Options {
    DeviceKind kind = DeviceKind::cpu;  // the group uses Gloo on the CPU and NCCL on GPUs, one for each rank
    int rank = 0, size = 1;
    double timeout_s = 30;
    std::function<std::string()> blame = {}, lost = {};
    ThreadMeetings* meetings = nullptr;  // if given, the ranks form a ThreadGroup that meets here
  };

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream, other_stream;
  Arena tensors, scratch;
  std::unique_ptr<comm::Group> group;

  GroupRank(ThreadStore& store, const Options& options)
      : device(make_device(options.kind, options.kind == DeviceKind::cuda ? options.rank : 0)),
        stream(device->make_stream()),
        other_stream(device->make_stream()),
        tensors(*device, MemoryCategory::workspace, 1 << 23),
        scratch(*device, MemoryCategory::workspace, 1 << 22) {
    if (options.meetings) {
      group = make_thread_group(*options.meetings, "test", options.rank, options.size);
      return;
    }
    group = comm::make_group(
        *device, {.name = "test",
                  .rank = options.rank,
                  .size = options.size,
                  .timeout_s = options.timeout_s,
                  .set = [&store](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
                  .get = [&store](const std::string& key) { return store.get(key); },
                  .blame = options.blame,
                  .lost = options.lost});
  }

  // Makes a tensor of n elements. `dtype` says how T is stored.
  template <class T>
  Tensor tensor(std::int64_t n, const std::function<double(std::int64_t)>& value, DType dtype = kDTypeOf<T>) {
    std::vector<T> host(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) host[static_cast<std::size_t>(i)] = static_cast<T>(static_cast<float>(value(i)));
    const Tensor result = allocate(tensors, dtype, {n});
    stream->copy_to_device(result.data, host.data(), result.bytes());
    stream->synchronize();
    return result;
  }
  // Waits for the stream and returns the elements of x.
  template <class T>
  std::vector<double> values(const Tensor& x) {
    std::vector<T> host(static_cast<std::size_t>(x.elements()));
    stream->copy_to_host(host.data(), x.data, x.bytes());
    stream->synchronize();
    group->check();
    std::vector<double> result;
    for (const T& v : host) result.push_back(static_cast<double>(static_cast<float>(v)));
    return result;
  }
  // Succeeds if every element i of x equals expected(i).
  template <class T>
  ::testing::AssertionResult holds(const Tensor& x, const std::function<double(std::int64_t)>& expected) {
    const std::vector<double> actual = values<T>(x);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double e = expected(static_cast<std::int64_t>(i));
      if (actual[i] != e) return ::testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", not " << e;
    }
    return ::testing::AssertionSuccess();
  }
};

}  // namespace octet::testing
