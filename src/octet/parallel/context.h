// The context axis: its c ranks hold the parts of the same sequences. A sequence of S tokens is cut into 2c chunks of S / (2c),
// of which rank r holds the r-th from the beginning and the r-th from the end: under a causal mask a late chunk is as much more
// work than the mean as its early partner is less, so all ranks have the same work. One rank holds whole sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet::parallel {

// Tokens [begin, end) of a sequence.
struct TokenRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

// What a rank holds of each sequence, in the order in which it does, which is that of the sequence. 2c must divide S, unless c
// is 1.
std::vector<TokenRange> zigzag_chunks(std::int64_t seq_len, int rank, int ranks);

// Of whole sequences, one number a token [B S], those of a rank [B S / c].
std::vector<std::int32_t> context_part(std::span<const std::int32_t> whole, std::int64_t seq_len, int rank, int ranks);

}  // namespace octet::parallel
