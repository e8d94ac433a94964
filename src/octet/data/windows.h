// Makes sequences of a stream of documents, in one of two ways.
//
// `stream` cuts the stream into windows of seq_len + 1 tokens, one every seq_len tokens. Neighbouring windows share one token:
// the last target of a window is the first input of the next. Tokens after the last whole window are not used.
//
// `documents` packs whole documents (packs.h). The rest of a sequence is padding, which follows all documents. It is a
// document of its own that repeats the tokens of the sequence from the beginning, and has no targets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "octet/data/packs.h"
#include "octet/data/stream.h"

namespace octet::data {

// The target of a token after which nothing is predicted: kernels::kIgnoredTarget.
inline constexpr std::int32_t kNoTarget = -100;

enum class Packing { stream, documents };

// The destination of one sequence; L = seq_len.
struct Row {
  std::span<std::int32_t> tokens;   // [L], the inputs
  std::span<std::int32_t>
      targets;  // [L], targets[i] is the token after tokens[i], or kNoTarget if the corpus's loss mask has 0 for it
};

class Windows {
 public:
  // Throws Error{data} if there would be no window.
  Windows(Stream stream, std::int64_t seq_len, Packing packing = Packing::stream);
  // Whether there would be one.
  static bool any(const Stream& stream, std::int64_t seq_len, Packing packing);

  // The number of windows in a stream of so many tokens.
  static std::int64_t count_of(std::int64_t tokens, std::int64_t seq_len) { return tokens > 0 ? (tokens - 1) / seq_len : 0; }

  const Stream& stream() const { return stream_; }
  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t count() const { return packs_ ? packs_->count() : count_of(stream_.tokens(), seq_len_); }
  // With Packing::documents: which documents lie in which window.
  const std::optional<Packs>& packs() const { return packs_; }

  // Writes window w, in [0, count()), to `row`. Appends to `document_starts` the ascending offsets in [0, L) at which a document,
  // or the rest of a document, begins, each plus `base`; offset 0 is always the first. Throws Error{data} for a token outside [0,
  // vocab_size).
  void read(std::int64_t w, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
            std::int32_t base) const;
  // The same for parts of a packed sequence and the padding after them.
  void read_parts(std::span<const StreamRange> parts, std::int64_t vocab_size, Row row,
                  std::vector<std::int32_t>& document_starts, std::int32_t base) const;
  // The same for any tokens [first, first + row.tokens.size()) of the stream that have a token after them.
  void read_tokens(std::int64_t first, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
                   std::int32_t base) const;

 private:
  Stream stream_;
  std::int64_t seq_len_;
  std::optional<Packs> packs_;
};

}  // namespace octet::data
