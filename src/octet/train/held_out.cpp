#include "octet/train/held_out.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/train/restore.h"
#include "octet/train/sources.h"
#include "octet/train/tokenizer.h"

namespace octet::train {
namespace {

// Throws unless the known tokenizers of both are the same.
void check_same_tokenizer(const data::Corpus& trained, const data::Corpus& held_out) {
  const auto &a = trained.info(), &b = held_out.info();
  if (!a || !b || a->tokenizer.empty() || b->tokenizer.empty()) return;
  demand(a->tokenizer_hash == b->tokenizer_hash, ExitCode::data, held_out.paths().json.string(), ": prepared with tokenizer ",
         b->tokenizer, " (", b->tokenizer_hash, "), but ", trained.paths().json.string(), " with ", a->tokenizer, " (",
         a->tokenizer_hash, ")");
}

// Throws if there are evaluated sequences and a loss mask leaves no target in them, because their loss would be 0 / 0.
void check_targets(const data::Dataset& dataset, std::int64_t sequences) {
  const std::int64_t count = std::min(sequences, dataset.held_out_samples());
  const auto length = static_cast<std::size_t>(dataset.seq_len());
  std::vector<std::int32_t> tokens(length), targets(length), starts;
  for (std::int64_t i = 0; i < count; ++i) {
    starts.clear();
    dataset.held_out_sample(i, count, {.tokens = tokens, .targets = targets}, starts, 0);
    if (std::any_of(targets.begin(), targets.end(), [](std::int32_t target) { return target != kernels::kIgnoredTarget; }))
      return;
  }
  demand(count == 0, ExitCode::data, dataset.corpus(0).paths().bin.string(), ": none of the ", count,
         " held-out sequences has a token that is trained on");
}

// Warns of held-out text that is also trained on. Its loss says nothing about new text, but may serve for comparison.
void warn_of_trained_text(const Config& config) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code unknown;
    return std::filesystem::equivalent(data::CorpusPaths(a).bin, data::CorpusPaths(b).bin, unknown) && !unknown;
  };
  const auto warn = [&](const std::string& key, const std::string& path) {
    for (std::size_t i = 0; i < config.data.source.size(); ++i) {
      const SourceConfig& source = config.data.source[i];
      if (source.split == "validation" || !same(source.path, path)) continue;
      log_shared_warning(concat(key, " = ", in_quotes(path), " is also trained on, as data.source.", i,
                                ": its loss says nothing of new text. Give it another corpus to measure that"));
    }
  };
  for (std::size_t i = 0; i < config.evaluation.source.size(); ++i)
    warn(concat("evaluation.source.", i, ".path"), config.evaluation.source[i].path);
  for (std::size_t i = 0; i < config.data.source.size(); ++i) {
    if (config.data.source[i].split == "validation") warn(concat("data.source.", i, ".path"), config.data.source[i].path);
  }
}

}  // namespace

HeldOut::HeldOut(const Config& config, const data::Dataset& dataset) : sequences_(config.evaluation.sequences) {
  warn_of_trained_text(config);
  for (const EvaluationSourceConfig& source : config.evaluation.source) {
    if (source.name == config.evaluation.decides) decides_ = sets_.size();
    data::DatasetOptions options = dataset.options();  // the set is read as the run's corpora are
    options.sources = {{.path = source.path, .use = data::Use::validation}};
    auto own = std::make_unique<data::Dataset>(std::move(options));
    for (std::int64_t s = 0; s < dataset.sources(); ++s) check_same_tokenizer(dataset.corpus(s), own->corpus(0));
    const data::Dataset* set = own.get();
    sets_.push_back({.name = source.name, .own = std::move(own), .dataset = set});
  }
  if (sets_.empty()) sets_.push_back({.name = "", .own = nullptr, .dataset = &dataset});
  for (const Set& set : sets_) check_targets(*set.dataset, sequences_);
}

nlohmann::json HeldOut::measure() const {
  nlohmann::json corpora = sources_json(deciding());
  for (nlohmann::json& corpus : corpora) corpus.erase("path");  // a corpus may move
  return {{"name", deciding_name()},
          {"corpora", corpora},
          {"held_out", deciding().held_out_samples()},
          {"sequences", sequences_},
          {"seq_len", deciding().seq_len()}};
}

void HeldOut::verify_once() const {
  for (const Set& set : sets_) {
    if (set.own) set.own->verify_once();
  }
}

void HeldOut::check_tokenizers(const std::string& tokenizer) const {
  for (const Set& set : sets_) {
    if (set.own) check_tokenizer(*set.own, tokenizer);
  }
}

HeldOut::Losses HeldOut::evaluate(Engine& engine) const {
  Losses losses;
  if (sequences_ == 0) return losses;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const double loss = train::evaluate(engine, *sets_[i].dataset, sequences_);
    if (i == decides_) losses.deciding = loss;
    if (!sets_[i].name.empty()) losses.by_name.emplace_back(sets_[i].name, loss);
  }
  return losses;
}

}  // namespace octet::train
