// `octet data inspect`: what a corpus holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/corpus.h"

namespace octet::data {

struct LengthBucket {
  std::int64_t from = 0, to = 0;  // documents of [from, to) tokens; powers of two
  std::int64_t documents = 0, tokens = 0;
};

struct DocumentSample {
  std::int64_t document = 0, tokens = 0;  // its number and whole length
  std::vector<std::int32_t> ids;          // its beginning
  std::optional<std::string> text;        // decoded, when the tokenizer is at hand
};

struct CorpusReport {
  std::string prefix;
  TokenType type = TokenType::u16;
  std::int64_t documents = 0, sequences = 0, tokens = 0, bin_bytes = 0;
  std::int32_t largest_token = -1;                     // -1 without tokens
  std::int64_t shortest = 0, median = 0, longest = 0;  // document lengths; the median is the lower edge of its bucket
  std::vector<LengthBucket> histogram;                 // first to last bucket that is not empty
  std::vector<DocumentSample> samples;                 // evenly spaced over the corpus
  std::optional<CorpusInfo> info;                      // PREFIX.json, whose sums were verified
};

struct InspectOptions {
  std::int64_t samples = 3;
  std::int64_t sample_tokens = 160;
};

// Reads the corpus whole: checks the sums, the token type's range and, with PREFIX.json, that every token is in the vocabulary.
// Throws Error{data}.
CorpusReport inspect(const std::filesystem::path& prefix, const InspectOptions& options = {});

std::string to_text(const CorpusReport& report);
std::string to_json(const CorpusReport& report);

}  // namespace octet::data
