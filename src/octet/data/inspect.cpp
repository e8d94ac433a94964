#include "octet/data/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/telemetry/format.h"

namespace octet::data {
using telemetry::format_bytes, telemetry::format_count;
namespace {

constexpr std::int64_t kReadTokens = 1 << 18;

std::int32_t largest_token(const Corpus& corpus) {
  const std::int64_t vocab_size = corpus.info() ? corpus.info()->vocab_size : std::int64_t{INT32_MAX} + 1;
  std::vector<std::int32_t> some;
  std::int32_t largest = -1;
  for (std::int64_t first = 0; first < corpus.tokens(); first += kReadTokens) {
    some.resize(static_cast<std::size_t>(std::min(kReadTokens, corpus.tokens() - first)));
    corpus.read(first, some, vocab_size);
    largest = std::max(largest, *std::max_element(some.begin(), some.end()));
  }
  return largest;
}

void measure_lengths(const Corpus& corpus, CorpusReport& report) {
  // Bucket 0 counts empty documents. Bucket b > 0 counts documents of [2^(b-1), 2^b) tokens.
  std::array<LengthBucket, 65> buckets{};
  report.shortest = corpus.documents() > 0 ? INT64_MAX : 0;
  for (std::int64_t d = 0; d < corpus.documents(); ++d) {
    const std::int64_t length = corpus.document_start(d + 1) - corpus.document_start(d);
    LengthBucket& bucket = buckets[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)))];
    ++bucket.documents;
    bucket.tokens += length;
    report.shortest = std::min(report.shortest, length);
    report.longest = std::max(report.longest, length);
  }
  std::int64_t seen = 0;
  bool median_found = false;
  for (std::size_t b = 0; b < 63; ++b) {
    LengthBucket bucket = buckets[b];
    bucket.from = b == 0 ? 0 : std::int64_t{1} << (b - 1);
    bucket.to = std::int64_t{1} << b;
    seen += bucket.documents;
    if (!median_found && corpus.documents() > 0 && 2 * seen >= corpus.documents()) {
      report.median = bucket.from;
      median_found = true;
    }
    const bool later = seen < corpus.documents();
    if (bucket.documents > 0 || (!report.histogram.empty() && later)) report.histogram.push_back(bucket);
  }
}

// The tokenizer that PREFIX.json names, or nullptr if it cannot be loaded or has changed.
std::unique_ptr<Tokenizer> tokenizer_of(const Corpus& corpus) {
  if (!corpus.info() || corpus.info()->tokenizer.empty()) return nullptr;
  try {
    auto tokenizer = make_tokenizer(corpus.info()->tokenizer);
    return tokenizer->hash() == corpus.info()->tokenizer_hash ? std::move(tokenizer) : nullptr;
  } catch (const Error&) {
    return nullptr;  // the report shows ids instead of text
  }
}

}  // namespace

CorpusReport inspect(const std::filesystem::path& prefix, const InspectOptions& options) {
  const Corpus corpus(prefix);
  corpus.verify();
  CorpusReport report;
  report.prefix = corpus.paths().prefix.string();
  report.type = corpus.type();
  report.documents = corpus.documents();
  report.sequences = corpus.sequences();
  report.tokens = corpus.tokens();
  report.bin_bytes = corpus.bin_bytes();
  report.info = corpus.info();
  report.largest_token = largest_token(corpus);
  measure_lengths(corpus, report);

  const auto tokenizer = tokenizer_of(corpus);
  const std::int64_t samples = std::min(options.samples, corpus.documents());
  for (std::int64_t i = 0; i < samples; ++i) {
    DocumentSample sample;
    sample.document = corpus.documents() / samples * i;
    const std::int64_t first = corpus.document_start(sample.document);
    sample.tokens = corpus.document_start(sample.document + 1) - first;
    sample.ids.resize(static_cast<std::size_t>(std::min(sample.tokens, options.sample_tokens)));
    corpus.read(first, sample.ids, std::int64_t{INT32_MAX} + 1);
    if (tokenizer) tokenizer->decode(sample.ids, sample.text.emplace());
    report.samples.push_back(std::move(sample));
  }
  return report;
}

std::string to_text(const CorpusReport& report) {
  std::string text = fmt::format("{}\n", report.prefix);
  const auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("  {:<14}{}\n", name, value); };
  line("documents", format_count(report.documents));
  if (report.sequences != report.documents) line("sequences", format_count(report.sequences));
  line("tokens", fmt::format("{} ({}, {})", format_count(report.tokens), token_type_name(report.type),
                             format_bytes(static_cast<std::uint64_t>(report.bin_bytes))));
  line("largest token", format_count(std::int64_t{report.largest_token}));
  if (report.info && report.info->tokenizer.empty()) {
    line("tokenizer", "unknown (prepared from token files)");
    line("sums", "match");
  } else if (report.info) {
    line("tokenizer", fmt::format("{} (vocabulary {}, XXH3 {})", printable(report.info->tokenizer),
                                  format_count(report.info->vocab_size), printable(report.info->tokenizer_hash)));
    line("sums", "match");
  } else {
    line("tokenizer", "unknown (no .json beside the corpus)");
  }
  line("length", fmt::format("{} to {} tokens, median at least {}", format_count(report.shortest), format_count(report.longest),
                             format_count(report.median)));

  std::int64_t most = 1;
  for (const LengthBucket& bucket : report.histogram) most = std::max(most, bucket.documents);
  if (!report.histogram.empty()) text += "\n  tokens in a document     documents\n";
  for (const LengthBucket& bucket : report.histogram) {
    constexpr std::int64_t kBar = 40;
    // Rounds up, so that a bucket with few documents still has a bar.
    const std::int64_t bar = (bucket.documents * kBar + most - 1) / most;
    text += fmt::format("  {:>9} to {:<9}  {:>11}  {}\n", format_count(bucket.from), format_count(bucket.to - 1),
                        format_count(bucket.documents), std::string(static_cast<std::size_t>(bar), '#'));
  }
  for (const DocumentSample& sample : report.samples) {
    text += fmt::format("\n  document {} ({} tokens)\n    ", format_count(sample.document), format_count(sample.tokens));
    text += sample.text ? printable(*sample.text) : fmt::format("{}", fmt::join(sample.ids, " "));
    text += static_cast<std::int64_t>(sample.ids.size()) < sample.tokens ? " ...\n" : "\n";
  }
  return text;
}

std::string to_json(const CorpusReport& report) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["prefix"] = report.prefix;
  json["documents"] = report.documents;
  json["sequences"] = report.sequences;
  json["tokens"] = report.tokens;
  json["dtype"] = token_type_name(report.type);
  json["bin_bytes"] = report.bin_bytes;
  json["largest_token"] = report.largest_token;
  json["tokenizer"] = report.info ? Json(report.info->tokenizer) : Json(nullptr);
  json["tokenizer_hash"] = report.info ? Json(report.info->tokenizer_hash) : Json(nullptr);
  json["vocab_size"] = report.info ? Json(report.info->vocab_size) : Json(nullptr);
  json["length"] = {{"shortest", report.shortest}, {"median_at_least", report.median}, {"longest", report.longest}};
  json["histogram"] = Json::array();
  for (const LengthBucket& bucket : report.histogram) {
    json["histogram"].push_back(
        {{"from", bucket.from}, {"to", bucket.to}, {"documents", bucket.documents}, {"tokens", bucket.tokens}});
  }
  json["samples"] = Json::array();
  for (const DocumentSample& sample : report.samples) {
    json["samples"].push_back({{"document", sample.document},
                               {"tokens", sample.tokens},
                               {"ids", sample.ids},
                               {"text", sample.text ? Json(*sample.text) : Json(nullptr)}});
  }
  // Replaces invalid UTF-8 by U+FFFD: a sample may end inside a character.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace octet::data
