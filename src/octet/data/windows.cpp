#include "octet/data/windows.h"

#include <algorithm>
#include <utility>

#include "octet/base/require.h"

namespace octet::data {

Windows::Windows(Stream stream, std::int64_t seq_len, Packing packing) : stream_(std::move(stream)), seq_len_(seq_len) {
  require(seq_len >= 1 && seq_len <= INT32_MAX, "windows: seq_len ", seq_len);
  if (packing == Packing::documents) {
    packs_.emplace(Packs::documents_of(stream_), seq_len);
    demand(count() >= 1, ExitCode::data, stream_.corpus().paths().bin.string(),
           ": no document has two tokens, so nothing can be ", "predicted");
    return;
  }
  demand(count() >= 1, ExitCode::data, stream_.corpus().paths().bin.string(), ": ", stream_.tokens(), " tokens found, ",
         seq_len + 1, " needed for one sequence of seq_len ", seq_len, " and its last target");
}

bool Windows::any(const Stream& stream, std::int64_t seq_len, Packing packing) {
  return packing == Packing::documents ? !Packs::documents_of(stream).empty() : count_of(stream.tokens(), seq_len) >= 1;
}

void Windows::read(std::int64_t w, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
                   std::int32_t base) const {
  require(w >= 0 && w < count(), "windows: window ", w, " of ", count());
  const auto length = static_cast<std::size_t>(seq_len_);
  require(row.tokens.size() == length && row.targets.size() == length, "windows: a row must have ", length,
          " tokens and targets, got ", row.tokens.size(), " and ", row.targets.size());
  if (packs_) return read_parts(packs_->sequence(w), vocab_size, row, document_starts, base);
  read_tokens(w * seq_len_, vocab_size, row, document_starts, base);
}

void Windows::read_parts(std::span<const StreamRange> parts, std::int64_t vocab_size, Row row,
                         std::vector<std::int32_t>& document_starts, std::int32_t base) const {
  std::size_t at = 0;
  for (const StreamRange& part : parts) {
    const auto count = static_cast<std::size_t>(part.last - part.first);
    read_tokens(part.first, vocab_size, {row.tokens.subspan(at, count), row.targets.subspan(at, count)}, document_starts,
                base + static_cast<std::int32_t>(at));
    at += count;
  }
  if (at == row.tokens.size()) return;
  document_starts.push_back(base + static_cast<std::int32_t>(at));
  std::fill(row.targets.begin() + static_cast<std::ptrdiff_t>(at), row.targets.end(), kNoTarget);
  // A mixture's router balances its experts over all tokens. If padding were one token over and over, all of it would choose
  // the same experts, and balancing would drive the documents away from these.
  for (std::size_t i = at; i < row.tokens.size(); ++i) row.tokens[i] = row.tokens[i - at];
}

void Windows::read_tokens(std::int64_t first, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
                          std::int32_t base) const {
  const auto count = static_cast<std::int64_t>(row.tokens.size());
  stream_.read(first, row.tokens, vocab_size);
  std::copy(row.tokens.begin() + 1, row.tokens.end(), row.targets.begin());
  stream_.read(first + count, row.targets.last(1), vocab_size);
  stream_.document_starts(first, count, base, document_starts);
  if (!stream_.corpus().has_loss_mask()) return;
  std::vector<std::uint8_t> trained(row.targets.size());
  stream_.read_loss_mask(first + 1, trained);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (trained[i] == 0) row.targets[i] = kNoTarget;
  }
}

}  // namespace octet::data
