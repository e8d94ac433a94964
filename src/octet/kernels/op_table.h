// A table in device memory with which one launch works through many tensors. Without it, each tensor would need its own launch,
// and a model with thousands of experts would spend its optimizer step on launches. The table is written once, before the first
// step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/device/device.h"

namespace octet::kernels {

// A block of threads works on one chunk: chunk `number` of item `item`.
struct Chunk {
  std::int32_t item = 0, number = 0;
};

// The items are plain structs of addresses and numbers. Only a GPU, or the meta device that stands for it, has a copy of them.
// The CPU reads the op's own list of tensors.
template <class Item>
class OpTable {
 public:
  OpTable() = default;
  // Item i has chunks[i] chunks. Takes memory of MemoryCategory::state, and waits until the table is written.
  OpTable(Device& device, const std::vector<Item>& items, const std::vector<std::int64_t>& chunks) {
    require(items.size() == chunks.size(), "a table of ", items.size(), " items with ", chunks.size(), " numbers of chunks");
    chunks_ = std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0});
    if (device.target() != DeviceKind::cuda || chunks_ == 0) return;
    first_chunk_ = round_up(items.size() * sizeof(Item), alignof(Chunk));
    memory_ = device.allocate(first_chunk_ + static_cast<std::size_t>(chunks_) * sizeof(Chunk), MemoryCategory::state);
    if (device.kind() == DeviceKind::meta) return;  // a plan for one GPU of a model for a thousand would write gigabytes
    std::vector<Chunk> all;
    all.reserve(static_cast<std::size_t>(chunks_));
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (std::int64_t number = 0; number < chunks[i]; ++number) {
        all.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(number)});
      }
    }
    const std::unique_ptr<Stream> stream = device.make_stream();
    stream->copy_to_device(memory_.data(), items.data(), items.size() * sizeof(Item));
    stream->copy_to_device(at(first_chunk_), all.data(), all.size() * sizeof(Chunk));
    stream->synchronize();
  }

  // The number of chunks of all items.
  std::int64_t chunks() const { return chunks_; }
  // In the memory of a GPU.
  const Item* items_of_device() const { return static_cast<const Item*>(memory_.data()); }
  const Chunk* chunks_of_device() const { return static_cast<const Chunk*>(at(first_chunk_)); }

 private:
  void* at(std::size_t bytes) const { return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory_.data()) + bytes); }

  Buffer memory_;
  std::size_t first_chunk_ = 0;
  std::int64_t chunks_ = 0;
};

// Divides the count_of(item) elements of each item into chunks of `grain` (the last one of an item may have fewer), and calls
// body(index of the item, number of the chunk among all chunks, begin, end). Threads share the chunks of all items.
template <class Items, class CountOf, class Body>
void parallel_chunks(const Items& items, const CountOf& count_of, std::int64_t grain, const Body& body) {
  std::vector<std::int64_t> first = {0};  // the first chunk of each item
  for (const auto& item : items) first.push_back(first.back() + ceil_div(count_of(item), grain));
  parallel_ranges(first.back(), 1, [&](std::int64_t chunk, std::int64_t) {
    const auto at = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), chunk) - first.begin()) - 1;
    const std::int64_t begin = (chunk - first[at]) * grain;
    body(at, chunk, begin, std::min(count_of(items[at]), begin + grain));
  });
}

}  // namespace octet::kernels
