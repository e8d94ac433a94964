// Some or all documents of a corpus, one after the other, as one stream of tokens that is numbered from 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/data/corpus.h"

namespace octet::data {

// Tokens [first, last) of a stream.
struct StreamRange {
  std::int64_t first, last;
};

class Stream {
 public:
  // The corpus must outlive the Stream.
  explicit Stream(const Corpus& corpus);
  // The documents [first, last) of each range. Ranges ascend and do not overlap. Neighbouring ranges are joined, so that the
  // memory grows with the number of gaps and not with the number of documents.
  struct Documents {
    std::int64_t first, last;
  };
  Stream(const Corpus& corpus, std::span<const Documents> ranges);

  const Corpus& corpus() const { return *corpus_; }
  std::int64_t tokens() const { return tokens_; }

  // Reads tokens [first, first + out.size()). Throws like Corpus::read().
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab_size) const;
  // The loss mask of these tokens; the corpus must have one.
  void read_loss_mask(std::int64_t first, std::span<std::uint8_t> out) const;
  // Appends the ascending offsets in [0, count) at which a document with tokens begins in [first, first + count), each plus
  // `base`. The offset 0 is always the first, even in the middle of a document.
  void document_starts(std::int64_t first, std::int64_t count, std::int32_t base, std::vector<std::int32_t>& starts) const;
  // Calls visit(number of the first token in the stream, number of tokens) for every document that has tokens.
  template <class Visit>
  void each_document(Visit&& visit) const {
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const auto [begin, in_corpus] = pieces_[p];
      const std::int64_t end = p + 1 < pieces_.size() ? pieces_[p + 1].at : tokens_;
      if (begin == end) continue;
      std::int64_t d = corpus_->document_at(in_corpus);
      for (std::int64_t at = begin, next = begin; at < end; at = next, ++d) {
        next = begin + corpus_->document_start(d + 1) - in_corpus;
        if (next > at) visit(at, next - at);
      }
    }
  }

 private:
  // Tokens that lie together in the corpus: token `at` of the stream is token `in_corpus` of the corpus.
  struct Piece {
    std::int64_t at, in_corpus;
  };
  // Calls visit(offset from first, first token in the corpus, number of tokens) for each piece of [first, first + count).
  template <class Visit>
  void each_piece(std::int64_t first, std::int64_t count, Visit&& visit) const;

  const Corpus* corpus_;
  std::vector<Piece> pieces_;
  std::int64_t tokens_ = 0;
};

}  // namespace octet::data
