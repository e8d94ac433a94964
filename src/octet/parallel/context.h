// The context axis. Its c ranks hold parts of the same sequences (zigzag). A sequence of S tokens is cut into 2c chunks of S /
// (2c). Rank r holds the r-th chunk from the beginning and the r-th chunk from the end. Under a causal mask, a late chunk has
// as much more work than the mean as its early partner has less, so all ranks have the same work. With one rank, sequences are
// whole.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/base/math.h"

namespace octet::parallel {

using TokenRange = IndexRange<std::int64_t>;  // of a sequence

// Returns the tokens of each sequence that a rank holds, in the order of the sequence. 2c must divide S, unless c is 1.
std::vector<TokenRange> zigzag_chunks(std::int64_t seq_len, int rank, int ranks);

// Returns this rank's part [B S / c] of numbers for whole sequences [B S], one number for each token.
std::vector<std::int32_t> context_part(std::span<const std::int32_t> whole, std::int64_t seq_len, int rank, int ranks);

}  // namespace octet::parallel
