#include "octet/data/loader.h"

#include <utility>

#include "octet/base/clock.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"

namespace octet::data {

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset), options_(options), position_(options.position), fill_position_(options.position) {
  require(options.coordinates >= 1 && options.coordinate >= 0 && options.coordinate < options.coordinates &&
              options.micro_batch_size >= 1 && options.position >= 0 && options.ahead >= 1,
          "loader: coordinate ", options.coordinate, " of ", options.coordinates, ", micro_batch_size ", options.micro_batch_size,
          ", position ", options.position, ", ahead ", options.ahead);
  demand(dataset.trains(), ExitCode::config,
         "data.source: all sources have split = \"validation\", which leaves nothing to train on");
  for (std::int64_t s = 0; s < dataset.sources(); ++s) {
    demand(!dataset.trains_on(s) || dataset.train_windows(s) > 0, ExitCode::config, dataset.corpus(s).paths().prefix.string(),
           ": data.split = [", dataset.options().split[0], ", ", dataset.options().split[1], "] leaves nothing to train on");
  }
  const std::int64_t tokens = options.micro_batch_size * dataset.seq_len();
  require(tokens <= INT32_MAX, "loader: a micro-batch of ", tokens, " tokens");
  // One more slot than batches to read ahead, because the caller holds a slot.
  slots_.resize(static_cast<std::size_t>(options.ahead + 1));
  for (Slot& slot : slots_) {
    slot.tokens.resize(static_cast<std::size_t>(tokens));
    slot.targets.resize(static_cast<std::size_t>(tokens));
    slot.document_starts.reserve(static_cast<std::size_t>(tokens));
  }
  thread_ = start_thread("the loader of the corpus", [this] { run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  freed_.notify_one();
  thread_.join();
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  give_back();
  if (head_ == tail_ && !error_) {
    const auto start = Clock::now();
    filled_.wait(lock, [&] { return head_ < tail_ || error_; });
    wait_s_ += seconds_since(start);
  }
  if (head_ == tail_) std::rethrow_exception(error_);
  const Slot& slot = slots_[static_cast<std::size_t>(head_) % slots_.size()];
  holds_slot_ = true;
  Batch batch;
  batch.first_sample = position_ + options_.coordinate * options_.micro_batch_size;
  batch.tokens = slot.tokens;
  batch.targets = slot.targets;
  batch.document_starts = slot.document_starts;
  position_ += options_.coordinates * options_.micro_batch_size;
  return batch;
}

// Releases the slot that the caller holds. The caller of this function holds the lock.
void Loader::give_back() {
  if (!std::exchange(holds_slot_, false)) return;
  ++head_;
  freed_.notify_one();
}

void Loader::seek(std::int64_t position) {
  require(position >= 0, "loader: position ", position);
  const std::lock_guard lock(mutex_);
  holds_slot_ = false;
  // The thread may be filling slot tail_, so tail_ stays. The thread drops that batch when it sees the new generation.
  head_ = tail_;
  ++generation_;
  error_ = nullptr;
  position_ = fill_position_ = position;
  freed_.notify_one();
}

double Loader::take_wait_s() { return std::exchange(wait_s_, 0.0); }

void Loader::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    freed_.wait(lock, [&] { return stop_ || (!error_ && tail_ - head_ < static_cast<std::int64_t>(slots_.size())); });
    if (stop_) return;
    Slot& slot = slots_[static_cast<std::size_t>(tail_) % slots_.size()];
    const std::int64_t first = fill_position_ + options_.coordinate * options_.micro_batch_size;
    const std::int64_t generation = generation_;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(slot, first);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (generation != generation_) continue;
    if (error) {
      error_ = error;
    } else {
      ++tail_;
      fill_position_ += options_.coordinates * options_.micro_batch_size;
    }
    filled_.notify_one();
  }
}

void Loader::fill(Slot& slot, std::int64_t first_sample) const {
  const auto length = static_cast<std::size_t>(dataset_.seq_len());
  slot.document_starts.clear();
  for (std::int64_t i = 0; i < options_.micro_batch_size; ++i) {
    const std::size_t base = static_cast<std::size_t>(i) * length;
    const Row row = {std::span(slot.tokens).subspan(base, length), std::span(slot.targets).subspan(base, length)};
    dataset_.train_sample(first_sample + i, row, slot.document_starts, static_cast<std::int32_t>(base));
  }
}

}  // namespace octet::data
