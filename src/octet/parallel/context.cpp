#include "octet/parallel/context.h"

#include "octet/base/require.h"

namespace octet::parallel {

std::vector<TokenRange> zigzag_chunks(std::int64_t seq_len, int rank, int ranks) {
  require(rank >= 0 && rank < ranks, "context: rank ", rank, " of ", ranks);
  if (ranks == 1) return {{0, seq_len}};
  const std::int64_t chunk = seq_len / (2 * ranks);
  require(chunk > 0 && chunk * 2 * ranks == seq_len, "context: ", seq_len, " tokens cannot be cut into ", 2 * ranks,
          " equal chunks");
  return {{rank * chunk, (rank + 1) * chunk}, {seq_len - (rank + 1) * chunk, seq_len - rank * chunk}};
}

std::vector<std::int32_t> context_part(std::span<const std::int32_t> whole, std::int64_t seq_len, int rank, int ranks) {
  const std::vector<TokenRange> ranges = zigzag_chunks(seq_len, rank, ranks);
  const auto length = static_cast<std::size_t>(seq_len);
  require(length > 0 && whole.size() % length == 0, "context: ", whole.size(), " tokens are not whole sequences of ", seq_len);
  std::vector<std::int32_t> part;
  part.reserve(whole.size() / static_cast<std::size_t>(ranks));
  for (std::size_t sequence = 0; sequence < whole.size(); sequence += length) {
    for (const TokenRange& range : ranges) {
      const auto from = whole.subspan(sequence + static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.count()));
      part.insert(part.end(), from.begin(), from.end());
    }
  }
  return part;
}

}  // namespace octet::parallel
