#include "octet/data/remainder.h"

#include <algorithm>

#include "octet/base/require.h"

namespace octet::data {

Remainder::Remainder(std::span<const Range> ranges, std::int64_t seq_len, Packing packing) : seq_len_(seq_len) {
  require(seq_len >= 1, "remainder: seq_len ", seq_len);
  if (packing == Packing::documents) {
    packs_.emplace(ranges, seq_len);
    tokens_ = packs_->tokens();
    return;
  }
  places_.reserve(ranges.size());
  for (const Range& range : ranges) {
    places_.push_back({tokens_, range.first});
    tokens_ += range.last - range.first;
  }
}

// Calls visit(offset from first, first token in the stream, number of tokens) for each place of [first, first + count).
template <class Visit>
void Remainder::each_place(std::int64_t first, std::int64_t count, Visit&& visit) const {
  require(first >= 0 && first + count <= tokens_, "remainder: tokens ", first, " to ", first + count, " of ", tokens_);
  auto place =
      std::upper_bound(places_.begin(), places_.end(), first, [](std::int64_t at, const Place& p) { return at < p.at; }) - 1;
  for (std::int64_t done = 0; done < count; ++place) {
    const std::int64_t end = place + 1 == places_.end() ? tokens_ : (place + 1)->at;
    const std::int64_t here = std::min(count - done, end - (first + done));
    visit(done, place->in_stream + (first + done - place->at), here);
    done += here;
  }
}

std::vector<Remainder::Range> Remainder::without(const std::vector<bool>& used) const {
  if (packs_) return packs_->without(used);
  require(static_cast<std::int64_t>(used.size()) == count(), "remainder: ", used.size(), " windows of ", count());
  std::vector<Range> left;
  const auto keep = [&](std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    each_place(first, count, [&](std::int64_t, std::int64_t in_stream, std::int64_t tokens) {
      if (!left.empty() && left.back().last == in_stream) {
        left.back().last += tokens;
      } else {
        left.push_back({in_stream, in_stream + tokens});
      }
    });
  };
  for (std::int64_t w = 0; w < count(); ++w) {
    if (!used[static_cast<std::size_t>(w)]) keep(w * seq_len_, seq_len_);
  }
  keep(count() * seq_len_, tokens_ - count() * seq_len_);
  return left;
}

void Remainder::read(const Windows& text, std::int64_t w, std::int64_t vocab_size, Row row,
                     std::vector<std::int32_t>& document_starts, std::int32_t base) const {
  require(w >= 0 && w < count() && static_cast<std::int64_t>(row.tokens.size()) == seq_len_, "remainder: window ", w, " of ",
          count(), ", a row of ", row.tokens.size(), " tokens");
  if (packs_) return text.read_parts(packs_->sequence(w), vocab_size, row, document_starts, base);
  each_place(w * seq_len_, seq_len_, [&](std::int64_t offset, std::int64_t in_stream, std::int64_t count) {
    const auto begin = static_cast<std::size_t>(offset), size = static_cast<std::size_t>(count);
    text.read_tokens(in_stream, vocab_size, {row.tokens.subspan(begin, size), row.targets.subspan(begin, size)}, document_starts,
                     base + static_cast<std::int32_t>(offset));
  });
}

}  // namespace octet::data
