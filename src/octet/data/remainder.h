// The tokens of an epoch that no sample has used yet. When seq_len or the seed of a run changes in the middle of an epoch, the
// rest of the epoch consists of these tokens: they are cut into new windows, so that no token is seen twice or skipped.
//
// Unused windows that are neighbours are joined first. A new window may therefore contain text from several places; each place
// begins like a document. The last target of a place is the token that follows it in the corpus. Tokens after the last whole
// window are not used in this epoch. With Packing::documents the unused parts are packed again. The memory grows with the number
// of places: at most 8 bytes for each window of the epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "octet/data/windows.h"

namespace octet::data {

class Remainder {
 public:
  // The stream has a token after each token of a range.
  using Range = StreamRange;
  // The ranges ascend, do not overlap and are not empty. With Packing::documents each is a part of a document.
  Remainder(std::span<const Range> ranges, std::int64_t seq_len, Packing packing = Packing::stream);

  std::int64_t tokens() const { return tokens_; }
  // The number of windows of seq_len tokens.
  std::int64_t count() const { return packs_ ? packs_->count() : tokens_ / seq_len_; }
  // Returns what is left when the windows w with used[w] have been seen. Tokens after the last whole window are left, too.
  std::vector<Range> without(const std::vector<bool>& used) const;
  // Reads window w, in [0, count()), of the stream of `text`. See Windows::read() for the other arguments.
  void read(const Windows& text, std::int64_t w, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
            std::int32_t base) const;

 private:
  // Token `at` of the remainder is token `in_stream` of the stream.
  struct Place {
    std::int64_t at, in_stream;
  };
  template <class Visit>
  void each_place(std::int64_t first, std::int64_t count, Visit&& visit) const;

  std::vector<Place> places_;
  std::int64_t tokens_ = 0, seq_len_;
  std::optional<Packs> packs_;
};

}  // namespace octet::data
