#include "octet/data/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/data/corpus_json.h"
#include "octet/data/packs.h"
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

std::optional<std::int64_t> trained_tokens(const Corpus& corpus) {
  if (!corpus.has_loss_mask()) return std::nullopt;
  std::int64_t trained = 0;
  std::vector<std::uint8_t> some;
  for (std::int64_t first = 0; first < corpus.tokens(); first += kReadTokens) {
    some.resize(static_cast<std::size_t>(std::min(kReadTokens, corpus.tokens() - first)));
    corpus.read_loss_mask(first, some);
    trained += std::count(some.begin(), some.end(), std::uint8_t{1});
  }
  return trained;
}

PackingReport pack(const Corpus& corpus, std::int64_t seq_len) {
  const Packs packs(Packs::documents_of(Stream(corpus)), seq_len);
  const double places = static_cast<double>(packs.count()) * static_cast<double>(seq_len);
  return {.seq_len = seq_len,
          .sequences = packs.count(),
          .split_documents = packs.split_documents(),
          .fill = places > 0 ? static_cast<double>(packs.tokens()) / places : 0};
}

// The text of tokens inside a document: a space at its beginning stays.
std::string text_inside(std::span<const std::int32_t> ids, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return fmt::format("{} ", fmt::join(ids, " "));
  std::string text = "x";
  tokenizer->decode(ids, text);
  return text.substr(1);
}

std::vector<DocumentSample::Stretch> stretches_of(const Corpus& corpus, std::int64_t first, const std::vector<std::int32_t>& ids,
                                                  const Tokenizer* tokenizer) {
  std::vector<std::uint8_t> trained(ids.size(), 1);
  if (corpus.has_loss_mask()) corpus.read_loss_mask(first, trained);
  std::vector<DocumentSample::Stretch> stretches;
  for (std::size_t begin = 0; begin < ids.size();) {
    std::size_t end = begin;
    while (end < ids.size() && trained[end] == trained[begin]) ++end;
    stretches.push_back({trained[begin] == 1, text_inside(std::span(ids).subspan(begin, end - begin), tokenizer)});
    begin = end;
  }
  return stretches;
}

// The tokens of a sample, with line breaks as they are.
std::string marked(const DocumentSample& sample, Marks marks) {
  const bool colour = marks == Marks::colour;
  std::string text;
  for (const DocumentSample::Stretch& stretch : sample.stretches) {
    VisibleText visible;
    std::string shown = visible.feed(stretch.text);
    if (stretch.trained) shown = (colour ? "\x1b[32m" : "⟦") + shown + (colour ? "\x1b[0m" : "⟧");
    text += shown;
  }
  if (text.ends_with('\n')) text.pop_back();
  std::string indented;
  for (const char c : text) indented += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return indented;
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
  report.trained_tokens = trained_tokens(corpus);
  measure_lengths(corpus, report);
  if (options.pack_seq_len > 0) report.packing = pack(corpus, options.pack_seq_len);

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
    if (options.show == InspectOptions::Show::tokens) sample.stretches = stretches_of(corpus, first, sample.ids, tokenizer.get());
    report.samples.push_back(std::move(sample));
  }
  return report;
}

std::string to_text(const CorpusReport& report, Marks marks) {
  std::string text = fmt::format("{}\n", marks == Marks::colour ? printable(report.prefix) : report.prefix);
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
    line("tokenizer", "unknown (no .json file next to the corpus)");
  }
  const std::int64_t median_to = std::min(std::max(report.median, 2 * report.median - 1), report.longest);  // of its bucket
  line("length", fmt::format("{} to {} tokens, median {}", format_count(report.shortest), format_count(report.longest),
                             report.median == median_to ? format_count(median_to)
                                                        : concat(format_count(report.median), " to ", format_count(median_to))));

  if (report.trained_tokens) {
    const double share = report.tokens > 0 ? static_cast<double>(*report.trained_tokens) / static_cast<double>(report.tokens) : 0;
    line("trained on", fmt::format("{} tokens ({:.1f}%), {} are masked", format_count(*report.trained_tokens), 100 * share,
                                   format_count(report.tokens - *report.trained_tokens)));
  }
  if (report.info && report.info->chat) {
    const ChatInfo& chat = *report.info->chat;
    line("conversations", fmt::format("template {}, trained on: {}", printable(chat.form), printable(chat.train_on)));
    line("cut", format_count(chat.cut_tokens, "token"));
    line("left out", fmt::format("{} without an answer to train on, {} whose answers were cut off, {} duplicates",
                                 format_count(chat.no_answer), format_count(chat.answer_cut), format_count(chat.duplicates)));
  }
  if (report.packing) {
    const PackingReport& packing = *report.packing;
    line("packed", fmt::format("{} of {}, {:.1f}% full; documents longer than that, which are split: {}",
                               format_count(packing.sequences, "sequence"), format_count(packing.seq_len, "token"),
                               100 * packing.fill, format_count(packing.split_documents)));
  }

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
    text += fmt::format("\n  document {} ({})\n    ", format_count(sample.document), format_count(sample.tokens, "token"));
    if (!sample.stretches.empty()) {
      text += marked(sample, marks);
    } else {
      text += sample.text ? printable(*sample.text) : fmt::format("{}", fmt::join(sample.ids, " "));
    }
    text += static_cast<std::int64_t>(sample.ids.size()) < sample.tokens ? " ...\n" : "\n";
  }
  return text;
}

std::string to_json(const CorpusReport& report) {
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
  if (report.trained_tokens) json["trained_tokens"] = *report.trained_tokens;
  if (report.info && report.info->chat) json["chat"] = to_json(*report.info->chat);
  if (report.packing) {
    const PackingReport& packing = *report.packing;
    json["packing"] = {{"seq_len", packing.seq_len},
                       {"sequences", packing.sequences},
                       {"split_documents", packing.split_documents},
                       {"fill", packing.fill}};
  }
  json["samples"] = Json::array();
  for (const DocumentSample& sample : report.samples) {
    json["samples"].push_back({{"document", sample.document},
                               {"tokens", sample.tokens},
                               {"ids", sample.ids},
                               {"text", sample.text ? Json(*sample.text) : Json(nullptr)}});
    for (const DocumentSample::Stretch& stretch : sample.stretches)
      json["samples"].back()["stretches"].push_back({{"trained", stretch.trained}, {"text", stretch.text}});
  }
  // Replaces invalid UTF-8 by U+FFFD: a sample may end inside a character.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace octet::data
