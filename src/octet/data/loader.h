// Delivers the micro-batches of one data-parallel coordinate in order. A thread reads ahead.
//
// The cursor is a global sample number. With n coordinates and b = micro_batch_size, coordinate r gets samples c + r b to
// c + r b + b - 1 at cursor c; then the cursor advances by n b. An optimizer step therefore sees the same samples for any number of
// ranks if the global batch size is the same.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "octet/data/dataset.h"

namespace octet::data {

// B = micro_batch_size sequences of L = seq_len tokens, one after another.
struct Batch {
  std::int64_t first_sample = 0;                  // global number of the first sequence; the others are consecutive
  std::span<const std::int32_t> tokens;           // [B * L]
  std::span<const std::int32_t> targets;          // [B * L], targets[i] follows tokens[i] in the corpus, or is kNoTarget
  std::span<const std::int32_t> document_starts;  // ascending offsets into tokens at which a document, or the rest of a document,
                                                  // begins; every multiple of L is one of them
};

struct LoaderOptions {
  std::int64_t coordinate = 0;  // data-parallel coordinate, in [0, coordinates)
  std::int64_t coordinates = 1;
  std::int64_t micro_batch_size = 1;  // sequences per call of next()
  std::int64_t position = 0;          // the first cursor
  std::int64_t ahead = 4;             // batches to read ahead, at least 1; the constructor allocates their memory
};

class Loader {
 public:
  // The dataset must outlive the loader. Throws Error{config} if a training source has no training window, or if there is no training
  // source.
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the batch at the cursor and advances the cursor. The spans stay valid until the next call of next() or seek(). If the
  // reading thread fails, next() first returns the batches before the failure and then rethrows it.
  Batch next();
  // Moves the cursor, forward or back. Clears an error.
  void seek(std::int64_t position);
  // The cursor of the next call of next().
  std::int64_t position() const { return position_; }
  // Returns the seconds that next() has waited for data since the last call of take_wait_s(): `data_time_s` of a step.
  double take_wait_s();

 private:
  struct Slot {
    std::vector<std::int32_t> tokens, targets, document_starts;
  };
  void run();
  void give_back();
  void fill(Slot& slot, std::int64_t first_sample) const;

  const Dataset& dataset_;
  const LoaderOptions options_;
  std::int64_t position_;
  double wait_s_ = 0;
  bool holds_slot_ = false;  // the caller still reads the oldest slot

  std::mutex mutex_;
  std::condition_variable filled_, freed_;
  std::vector<Slot> slots_;
  std::int64_t head_ = 0;        // batches handed out and released
  std::int64_t tail_ = 0;        // batches filled; batch i is in slot i % slots_.size()
  std::int64_t fill_position_;   // cursor of the next batch to fill
  std::int64_t generation_ = 0;  // number of seeks; the thread drops a batch that it began before the last seek
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace octet::data
