// Launches whose blocks take their source and epilogue from a table (cast_list.h).
#pragma once

#include <cstring>
#include <type_traits>

#include "octet/kernels/quantize/cast_list.h"
#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

template <class T>
CastItem as_item(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(CastItem) && alignof(T) <= alignof(CastItem));
  CastItem item;
  std::memcpy(item.bytes.data(), &value, sizeof value);
  return item;
}
template <class T>
__device__ const T& item_at(const CastItem* items, int number) {
  return *reinterpret_cast<const T*>(items + number);
}

// Item has a source; Pass::epilogue(item, amaxes) is what the kernel does with its tiles. A chunk is a tile.
template <class Item, class Pass, class Epilogue>
__global__ void __launch_bounds__(kTileThreads, decltype(Item::source)::kBlocks)
    produce_items(const CastItem* items, const Chunk* chunks, float* amaxes) {
  static_assert(decltype(Item::source)::kAcross == 1);
  __shared__ typename Epilogue::Shared shared;
  const Chunk chunk = chunks[blockIdx.x];
  const Item& item = item_at<Item>(items, chunk.item);
  const auto source = item.source;
  const Epilogue epilogue = Pass::epilogue(item, amaxes);
  const int across = max(1, (source.cols + kTile - 1) / kTile);
  produce(source, epilogue, chunk.number / across, chunk.number % across, shared);
}

template <class Item, class Pass, class Epilogue>
void launch_items(Stream& stream, const OpTable<CastItem>& table, float* amaxes) {
  produce_items<Item, Pass, Epilogue>
      <<<static_cast<unsigned>(table.chunks()), kTileThreads, 0, octet::cuda::native_stream(stream)>>>(
          table.items_of_device(), table.chunks_of_device(), amaxes);
  octet::cuda::check_launch("produce_items");
}

}  // namespace octet::kernels::cuda
