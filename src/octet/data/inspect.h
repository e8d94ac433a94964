// `octet data inspect`: describes the contents of a corpus.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/corpus.h"

namespace octet::data {

struct LengthBucket {
  std::int64_t from = 0, to = 0;  // counts documents of [from, to) tokens; the edges are 0 and powers of two
  std::int64_t documents = 0, tokens = 0;
};

struct DocumentSample {
  std::int64_t document = 0, tokens = 0;  // number of the document and its length in tokens
  std::vector<std::int32_t> ids;          // the first tokens, at most InspectOptions::sample_tokens
  std::optional<std::string> text;        // the decoded `ids`; nothing if the tokenizer cannot be loaded
  // With InspectOptions::Show::tokens: stretches of `ids` that are all trained on, or all masked, each with its text or its ids.
  struct Stretch {
    bool trained;
    std::string text;
  };
  std::vector<Stretch> stretches;
};

// The result of packing a corpus with data.packing = "documents".
struct PackingReport {
  std::int64_t seq_len = 0, sequences = 0;
  std::int64_t split_documents = 0;  // longer than a sequence
  double fill = 0;                   // the share of the sequences' places that have a token, in [0, 1]
};

struct CorpusReport {
  std::string prefix;
  TokenType type = TokenType::u16;
  std::int64_t documents = 0, sequences = 0, tokens = 0, bin_bytes = 0;
  std::int32_t largest_token = -1;                     // -1 if there are no tokens
  std::int64_t shortest = 0, median = 0, longest = 0;  // document lengths in tokens; median: the lower edge of its bucket
  std::vector<LengthBucket> histogram;                 // from the first to the last bucket that is not empty
  std::vector<DocumentSample> samples;                 // evenly spaced over the corpus
  std::optional<CorpusInfo> info;                      // PREFIX.json, if there is one
  std::optional<std::int64_t> trained_tokens;          // by the loss mask, if there is one
  std::optional<PackingReport> packing;                // with InspectOptions::pack_seq_len
};

struct InspectOptions {
  std::int64_t samples = 3;
  std::int64_t sample_tokens = 160;
  enum class Show { beginnings, tokens } show = Show::beginnings;
  std::int64_t pack_seq_len = 0;  // 0: nothing is packed
};

// Reads the whole corpus. If there is a PREFIX.json, checks the checksums and that every token is in the vocabulary; otherwise
// checks that tokens are not negative and fit in 31 bits. Throws Error{data}.
CorpusReport inspect(const std::filesystem::path& prefix, const InspectOptions& options = {});

// How the text shows which tokens are trained on: in colour, for a terminal, or between ⟦ and ⟧. Coloured text has no other
// control sequences, because text from files is made visible.
enum class Marks { colour, brackets };
std::string to_text(const CorpusReport& report, Marks marks = Marks::brackets);
std::string to_json(const CorpusReport& report);

}  // namespace octet::data
