#include "octet/train/calibration.h"

#include <algorithm>
#include <span>
#include <vector>

#include "octet/train/setup.h"

namespace octet::train {

std::int64_t first_trained_batch(const data::Dataset& dataset, std::int64_t position, std::int64_t batch) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.seq_len())), targets(tokens.size()), starts;
  for (std::int64_t sample = 0; sample < dataset.samples_per_epoch(); ++sample) {
    starts.clear();
    dataset.train_sample(position + sample, {.tokens = tokens, .targets = targets}, starts);
    if (std::any_of(targets.begin(), targets.end(), [](std::int32_t target) { return target != data::kNoTarget; }))
      return position + sample / batch * batch;
  }
  return position;
}

void calibrate(Engine& engine, const Config& config, const data::Dataset& dataset, const data::Dataset& held_out) {
  const bool trains = dataset.samples_per_epoch() > 0;
  const std::int64_t rows = engine.options().micro_batch_size, length = dataset.seq_len(), of = held_out.held_out_samples();
  std::int64_t sample = trains ? first_trained_batch(dataset, 0, config.training.global_batch_size) : 0;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows * length)), targets(tokens.size()), starts;
  engine.calibrate(accumulation_of(config), [&] {
    starts.clear();
    for (std::int64_t row = 0; row < rows; ++row, ++sample) {
      const auto first = static_cast<std::size_t>(row * length), count = static_cast<std::size_t>(length);
      const data::Row to{.tokens = std::span(tokens).subspan(first, count), .targets = std::span(targets).subspan(first, count)};
      const auto base = static_cast<std::int32_t>(first);
      if (trains) {
        dataset.train_sample(sample, to, starts, base);
      } else {
        held_out.held_out_sample(sample % of, of, to, starts, base);
      }
    }
    return data::Batch{.tokens = tokens, .targets = targets, .document_starts = starts};
  });
}

}  // namespace octet::train
