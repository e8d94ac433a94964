// Lets ranks in threads write and read checkpoints together, and divides tensors among them.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/files.h"
#include "octet/checkpoint/ranks.h"
#include "octet/checkpoint/writer.h"
#include "support/ranks.h"

namespace octet::checkpoint {

// A store for threads in which a rank can be lost.
class LosableStore {
 public:
  void set(const std::string& key, std::string_view value, int reads) {
    const std::lock_guard lock(mutex_);
    values_[key] = {std::string(value), reads};
    changed_.notify_all();
  }
  std::string get(const std::string& key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return values_.contains(key) || !lost_.empty(); });
    demand(values_.contains(key), ExitCode::peer, key, " was not set: ", lost_);
    const auto entry = values_.find(key);
    std::string value = entry->second.first;
    if (--entry->second.second == 0) values_.erase(entry);
    return value;
  }
  [[noreturn]] void lose(int rank) {
    {
      const std::lock_guard lock(mutex_);
      lost_ = concat("rank ", rank, " closed its connection");
      changed_.notify_all();
    }
    fail(ExitCode::peer, "rank ", rank, " is lost");
  }
  std::size_t keys() const { return values_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::pair<std::string, int>> values_;  // with the number of reads after which a key goes
  std::string lost_;
};

inline Ranks ranks_of(LosableStore& store, int rank, int size, const std::string& name = "checkpoint") {
  return {.rank = rank,
          .size = size,
          .name = name,
          .set = [&store](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
          .get = [&store](const std::string& key) { return store.get(key); }};
}

enum class Cut : std::uint8_t {
  flat,    // equal ranges; the last ones are shorter or empty
  boxes,   // the last dim is cut, and pairs of ranks share a box in flat ranges
  sparse,  // every other rank holds nothing
};

// Returns the rank's slice of a tensor.
inline Slice slice_of(const Shape& global, Cut cut, int rank, int size) {
  const auto range = [](std::int64_t elements, std::int64_t part, std::int64_t parts) {
    const std::int64_t step = (elements + parts - 1) / parts;
    return std::pair(std::min(part * step, elements), std::min((part + 1) * step, elements));
  };
  Slice slice = Slice::whole(global);
  if (cut == Cut::sparse) {
    if (rank % 2 == 1) return Slice::flat(global, 0, 0);
    rank /= 2;
    size = (size + 1) / 2;
  }
  if (cut == Cut::boxes && size % 2 == 0 && global.rank() > 0) {
    const int last = global.rank() - 1;
    std::tie(slice.start[last], slice.stop[last]) = range(global[last], rank % (size / 2), size / 2);
    rank /= size / 2;
    size = 2;
  }
  std::tie(slice.begin, slice.end) = range(slice.box_shape().elements(), rank, size);
  return slice;
}

// Returns an entry for the slice. If `filled`, global element i is first + i; otherwise the slice is zero.
inline Entry entry_of(Memory& memory, const std::string& name, const Shape& global, const Slice& slice, std::int32_t first,
                      bool filled) {
  const Tensor part = memory.tensor(DType::i32, stored_shape(slice));
  std::fill_n(part.as<std::int32_t>(), part.elements(), 0);
  if (filled) copy_overlap(global, Slice::whole(global), memory.counting(global, first).data, slice, part.data, 4);
  return {name, part, global, slice};
}

}  // namespace octet::checkpoint
