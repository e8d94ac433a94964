#include "octet/data/dataset.h"

#include <algorithm>

#include "octet/base/log.h"
#include "octet/base/require.h"

namespace octet::data {
namespace {

std::vector<double> weights_of(const std::vector<Source>& sources) {
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight);
  return weights;
}

// The {train, held out} fractions of one source.
std::array<double, 2> fractions_of(const Source& source, const DatasetOptions& options) {
  const bool named =
      std::any_of(options.sources.begin(), options.sources.end(), [](const Source& s) { return s.use == Use::validation; });
  if (source.use == Use::validation) return {0, 1};
  return source.use == Use::train || named ? std::array<double, 2>{1, 0} : options.split;
}

// The order in which the windows of a source are seen in an epoch.
Permutation order_of(std::int64_t windows, std::uint64_t seed, std::int64_t epoch, std::int64_t source) {
  return {windows, seed, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(source)};
}

// Throws if both tokenizers are known and differ.
void check_tokenizers(const Corpus& a, const Corpus& b) {
  if (!a.info() || !b.info() || a.info()->tokenizer.empty() || b.info()->tokenizer.empty()) return;
  demand(a.info()->tokenizer_hash == b.info()->tokenizer_hash, ExitCode::data, b.paths().json.string(),
         ": prepared with tokenizer ", b.info()->tokenizer, " (", b.info()->tokenizer_hash, "), but ", a.paths().json.string(),
         " with ", a.info()->tokenizer, " (", a.info()->tokenizer_hash, ")");
}

}  // namespace

Dataset::Dataset(DatasetOptions options) : options_(std::move(options)) {
  require(options_.seq_len >= 1 && options_.vocab_size >= 1, "dataset: seq_len ", options_.seq_len, ", vocab_size ",
          options_.vocab_size);
  Mixture(
      weights_of(options_.sources));  // throws for an invalid weight, before the sources are divided into parts and renumbered
  std::vector<std::int64_t> train, held_out;
  for (const Source& source : options_.sources) {
    const auto number = static_cast<std::int64_t>(sources_.size());
    auto corpus = std::make_unique<Corpus>(source.path, options_.mask, options_.retry_s);
    const std::array<double, 2> fractions = fractions_of(source, options_);
    Split split(*corpus, options_.seq_len, fractions, options_.split_by, options_.packing);
    if (options_.split_by == SplitBy::documents && fractions[0] > 0 && fractions[1] > 0 && !split.by_documents()) {
      log_info(concat(corpus->paths().prefix.string(), ": too few documents to hold some out; windows of ", options_.seq_len,
                      " tokens are held out instead"));
    }
    const auto& info = corpus->info();
    if (info && info->largest_token) {
      demand(*info->largest_token < options_.vocab_size, ExitCode::data, corpus->paths().json.string(), ": the corpus has token ",
             *info->largest_token, ", which is outside the model's vocabulary of ", options_.vocab_size,
             vocabulary_advice(info->vocab_size));
    } else if (info && info->vocab_size > options_.vocab_size) {
      log_shared_warning(concat(corpus->paths().json.string(), ": its vocabulary has ", info->vocab_size, " tokens, the model's ",
                                options_.vocab_size, "; a token beyond it will stop the run"));
    }
    for (const PreparedSource& earlier : sources_) check_tokenizers(*earlier.corpus, *corpus);
    if (trains_on(number)) train.push_back(number);
    if (split.count(Part::held_out) > 0) held_out.push_back(number);
    sources_.push_back({std::move(corpus), std::move(split)});
  }
  train_ = drawn(train);
  held_out_ = drawn(held_out);
}

Dataset::Drawn Dataset::drawn(const std::vector<std::int64_t>& sources) const {
  Drawn result{.sources = sources, .mixture = {}};
  std::vector<double> weights;
  for (const std::int64_t s : sources) weights.push_back(options_.sources[static_cast<std::size_t>(s)].weight);
  if (!weights.empty()) result.mixture.emplace(weights);
  return result;
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

std::int64_t Dataset::samples_left() const {
  std::int64_t sum = 0;
  for (const PreparedSource& source : sources_) sum += source.rest ? source.rest->count() : 0;
  return sum;
}

void Dataset::train_sample(std::int64_t position, Row row, std::vector<std::int32_t>& document_starts, std::int32_t base) const {
  require(train_.mixture.has_value(), "dataset: no training sources");
  const auto [drawn, ordinal] = (*train_.mixture)(position);
  const std::int64_t number = train_.sources[static_cast<std::size_t>(drawn)];
  const PreparedSource& source = sources_[static_cast<std::size_t>(number)];
  const std::int64_t windows = source.split.count(Part::train), rest = source.rest ? source.rest->count() : 0;
  require(windows > 0, "dataset: no training windows");
  if (ordinal < rest) {
    const Permutation order = order_of(rest, options_.seed, source.epoch - 1, number);
    return source.rest->read(source.split.training_text(), order(ordinal), options_.vocab_size, row, document_starts, base);
  }
  const std::int64_t after = ordinal - rest;
  const Permutation order = order_of(windows, options_.seed, source.epoch + after / windows, number);
  source.split.read(Part::train, order(after % windows), options_.vocab_size, row, document_starts, base);
}

void Dataset::continue_after(std::span<const Stretch> stretches) {
  for (std::size_t drawn = 0; drawn < train_.sources.size(); ++drawn) {
    const std::int64_t number = train_.sources[drawn];
    PreparedSource& source = sources_[static_cast<std::size_t>(number)];
    std::int64_t epoch = 0;
    std::vector<Remainder::Range> left;  // of epoch - 1
    for (const Stretch& stretch : stretches) {
      const Split split(*source.corpus, stretch.seq_len,
                        fractions_of(options_.sources[static_cast<std::size_t>(number)], options_), options_.split_by,
                        options_.packing);
      demand(stretch.seq_len == options_.seq_len || (!split.depends_on_seq_len() && !source.split.depends_on_seq_len()),
             ExitCode::config, source.corpus->paths().prefix.string(),
             ": windows of this corpus are held out, not documents. With seq_len ", options_.seq_len, " in the place of ",
             stretch.seq_len,
             " the run would hold out text that it was trained on. Go on with the old seq_len, or start a run from the exported "
             "model");
      const auto used = [&](std::int64_t windows, std::int64_t of_epoch, std::int64_t samples) {
        std::vector<bool> result(static_cast<std::size_t>(windows));
        if (samples == 0) return result;
        const Permutation order = order_of(windows, stretch.seed, of_epoch, number);
        for (std::int64_t i = 0; i < samples; ++i) result[static_cast<std::size_t>(order(i))] = true;
        return result;
      };
      const Remainder rest(left, stretch.seq_len, options_.packing);
      const std::int64_t samples = train_.mixture->drawn(static_cast<std::int64_t>(drawn), stretch.samples);
      if (samples < rest.count()) {
        left = rest.without(used(rest.count(), epoch - 1, samples));
        continue;
      }
      const std::int64_t windows = split.count(Part::train), after = samples - rest.count();
      epoch += after / windows;
      left.clear();
      if (after % windows > 0) left = split.left_to_train(used(windows, epoch++, after % windows));
    }
    source.epoch = epoch;
    source.rest.reset();
    if (!left.empty()) source.rest.emplace(left, options_.seq_len, options_.packing);
  }
}

Mixture::Draw Dataset::held_out_window(std::int64_t i) const {
  std::int64_t drawn = 0;
  for (const std::int64_t number : held_out_.sources) {
    const std::int64_t windows = sources_[static_cast<std::size_t>(number)].split.count(Part::held_out);
    if (i < windows) break;
    i -= windows;
    ++drawn;
  }
  return {drawn, i};
}

void Dataset::held_out_sample(std::int64_t i, std::int64_t samples, Row row, std::vector<std::int32_t>& document_starts,
                              std::int32_t base) const {
  require(i >= 0 && i < samples && samples <= held_out_samples(), "dataset: held-out sample ", i, " of ", samples, ", ",
          held_out_samples(), " held out");
  const auto [drawn, ordinal] = samples == held_out_samples() ? held_out_window(i) : (*held_out_.mixture)(i);
  const PreparedSource& source = sources_[static_cast<std::size_t>(held_out_.sources[static_cast<std::size_t>(drawn)])];
  source.split.read(Part::held_out, ordinal % source.split.count(Part::held_out), options_.vocab_size, row, document_starts,
                    base);
}

}  // namespace octet::data
