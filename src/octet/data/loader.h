// Feeds the batches of one data-parallel coordinate, in order, from a thread that reads ahead.
//
// The cursor is a global sample number. Micro-batch at cursor c: coordinate r of n gets samples c + r b ... c + r b + b - 1
// (b = micro_batch_size), then the cursor moves by n b. The samples of an optimizer step are therefore the same whatever the
// number of ranks, as long as the global batch is.
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

// B sequences of L = seq_len tokens, one after another.
struct Batch {
  std::int64_t first_sample = 0;                  // global number of the first; the others follow
  std::span<const std::int32_t> tokens;           // [B * L]
  std::span<const std::int32_t> targets;          // [B * L]
  std::span<const std::int32_t> document_starts;  // offsets into tokens, ascending, where a document or the rest of one
                                                  // begins; every multiple of L is among them
};

struct LoaderOptions {
  std::int64_t coordinate = 0;  // data-parallel, in [0, coordinates)
  std::int64_t coordinates = 1;
  std::int64_t micro_batch_size = 1;  // sequences per call of next()
  std::int64_t position = 0;          // cursor to begin at
  std::int64_t ahead = 4;             // batches read ahead, at least 1; their memory is allocated once
};

class Loader {
 public:
  // The dataset must outlive this. Throws Error{config} when a source that is trained on has nothing left for it, or none is.
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The batch at the cursor, which then moves on. Its spans are good until the following call of next() or seek(). An error of
  // the reading thread is thrown here, after the batches before it.
  Batch next();
  // Moves the cursor, forward or back. Clears an error.
  void seek(std::int64_t position);
  // The cursor: where next() will read.
  std::int64_t position() const { return position_; }
  // Seconds that next() has waited since the last call of take_wait_s(); `data_time_s` of a step.
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
  std::int64_t head_ = 0;        // batches handed out and given back
  std::int64_t tail_ = 0;        // batches filled; slot = number % slots
  std::int64_t fill_position_;   // cursor of the next batch to fill
  std::int64_t generation_ = 0;  // counts seeks: a batch begun before one is dropped
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace octet::data
