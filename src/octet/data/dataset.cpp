#include "octet/data/dataset.h"

#include "octet/base/log.h"
#include "octet/base/require.h"

namespace octet::data {
namespace {

std::vector<double> weights_of(const std::vector<Source>& sources) {
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight);
  return weights;
}

// Two corpora whose tokenizers are known must agree.
void check_tokenizers(const Corpus& a, const Corpus& b) {
  if (!a.info() || !b.info() || a.info()->tokenizer.empty() || b.info()->tokenizer.empty()) return;
  demand(a.info()->tokenizer_hash == b.info()->tokenizer_hash, ExitCode::data, b.paths().json.string(),
         ": prepared with tokenizer ", b.info()->tokenizer, " (", b.info()->tokenizer_hash, "), but ", a.paths().json.string(),
         " with ", a.info()->tokenizer, " (", a.info()->tokenizer_hash, ")");
}

}  // namespace

Dataset::Dataset(DatasetOptions options) : options_(std::move(options)), train_mixture_(weights_of(options_.sources)) {
  require(options_.seq_len >= 1 && options_.vocab_size >= 1, "dataset: seq_len ", options_.seq_len, ", vocab_size ",
          options_.vocab_size);
  std::vector<double> held_out_weights;
  for (const Source& source : options_.sources) {
    auto corpus = std::make_unique<Corpus>(source.path);
    const Windows windows(*corpus, options_.seq_len);
    const Split split(windows.count(), options_.split);
    if (corpus->info() && corpus->info()->vocab_size > options_.vocab_size) {
      log_shared_warning(concat(corpus->paths().json.string(), ": its vocabulary has ", corpus->info()->vocab_size,
                                " tokens, the model's ", options_.vocab_size, "; a token beyond it will stop the run"));
    }
    for (const PreparedSource& earlier : sources_) check_tokenizers(*earlier.corpus, *corpus);
    if (split.count(Part::held_out) > 0) {
      held_out_sources_.push_back(static_cast<std::int64_t>(sources_.size()));
      held_out_weights.push_back(source.weight);
    }
    sources_.push_back({std::move(corpus), windows, split});
  }
  if (!held_out_weights.empty()) held_out_mixture_.emplace(held_out_weights);
}

const Corpus& Dataset::corpus(std::int64_t source) const { return *sources_.at(static_cast<std::size_t>(source)).corpus; }

void Dataset::verify_once() const {
  for (const PreparedSource& source : sources_) source.corpus->verify_once();
}

std::int64_t Dataset::train_windows(std::int64_t source) const {
  return sources_.at(static_cast<std::size_t>(source)).split.count(Part::train);
}

std::int64_t Dataset::count(Part part) const {
  std::int64_t sum = 0;
  for (const PreparedSource& source : sources_) sum += source.split.count(part);
  return sum;
}

void Dataset::train_sample(std::int64_t position, Row row, std::vector<std::int32_t>& document_starts, std::int32_t base) const {
  const auto [number, ordinal] = train_mixture_(position);
  const PreparedSource& source = sources_[static_cast<std::size_t>(number)];
  const std::int64_t windows = source.split.count(Part::train);
  require(windows > 0, "dataset: no training windows");
  const Permutation order(windows, options_.seed, static_cast<std::uint32_t>(ordinal / windows),
                          static_cast<std::uint32_t>(number));
  const std::int64_t window = source.split.window(Part::train, order(ordinal % windows));
  source.windows.read(window, options_.vocab_size, row, document_starts, base);
}

void Dataset::held_out_sample(std::int64_t i, Row row, std::vector<std::int32_t>& document_starts, std::int32_t base) const {
  require(i >= 0 && i < held_out_samples(), "dataset: held-out sample ", i, " of ", held_out_samples());
  const auto [number, ordinal] = (*held_out_mixture_)(i);
  const PreparedSource& source = sources_[static_cast<std::size_t>(held_out_sources_[static_cast<std::size_t>(number)])];
  const std::int64_t window = source.split.window(Part::held_out, ordinal % source.split.count(Part::held_out));
  source.windows.read(window, options_.vocab_size, row, document_starts, base);
}

}  // namespace octet::data
