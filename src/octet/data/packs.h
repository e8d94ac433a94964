// Packs whole documents into sequences: every document lies in one sequence, together with others, and little padding is left
// at the end.
//
// A document of n tokens takes n - 1 places, because nothing is predicted after its last token. A document that takes more places
// than a sequence has is split into parts, and each part is packed like a document. Documents are placed by descending length,
// each into the fullest sequence that has room (best fit decreasing). The result depends on nothing but the lengths. It takes 16
// bytes of memory for each document.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/data/stream.h"

namespace octet::data {

class Packs {
 public:
  // Each range is the inputs of a document: tokens of a stream that have a token of the same document after them. Ranges are not
  // empty.
  Packs(std::span<const StreamRange> documents, std::int64_t seq_len);

  // Returns the ranges of those documents of a stream that have at least two tokens.
  static std::vector<StreamRange> documents_of(const Stream& stream);

  std::int64_t count() const { return static_cast<std::int64_t>(begins_.size()) - 1; }  // sequences
  std::int64_t tokens() const { return tokens_; }                                       // in all sequences, without padding
  std::int64_t documents() const { return documents_; }
  std::int64_t split_documents() const { return split_documents_; }  // documents that are longer than a sequence
  // The parts of sequence s, in [0, count()), in the order in which they lie in it.
  std::span<const StreamRange> sequence(std::int64_t s) const;
  // Returns the parts of all sequences s without used[s], in ascending order.
  std::vector<StreamRange> without(const std::vector<bool>& used) const;

 private:
  std::vector<StreamRange> parts_;    // of sequence 0, sequence 1, ...
  std::vector<std::int64_t> begins_;  // the first part of each sequence, and the number of parts
  std::int64_t tokens_ = 0, documents_ = 0, split_documents_ = 0;
};

}  // namespace octet::data
