#include "octet/data/windows.h"

#include <algorithm>

#include "octet/base/require.h"

namespace octet::data {

Windows::Windows(const Corpus& corpus, std::int64_t seq_len) : corpus_(&corpus), seq_len_(seq_len) {
  require(seq_len >= 1 && seq_len <= INT32_MAX, "windows: seq_len ", seq_len);
  demand(corpus.tokens() > seq_len, ExitCode::data, corpus.paths().bin.string(), ": ", corpus.tokens(), " tokens found, ",
         seq_len + 1, " needed for one sequence of seq_len ", seq_len, " and its last target");
  count_ = (corpus.tokens() - 1) / seq_len;
}

void Windows::read(std::int64_t w, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
                   std::int32_t base) const {
  require(w >= 0 && w < count_, "windows: window ", w, " of ", count_);
  const auto length = static_cast<std::size_t>(seq_len_);
  require(row.tokens.size() == length && row.targets.size() == length, "windows: a row must have ", length,
          " tokens and targets, got ", row.tokens.size(), " and ", row.targets.size());
  const std::int64_t first = w * seq_len_;
  corpus_->read(first, row.tokens, vocab_size);
  std::copy(row.tokens.begin() + 1, row.tokens.end(), row.targets.begin());
  corpus_->read(first + seq_len_, row.targets.last(1), vocab_size);

  document_starts.push_back(base);
  std::int64_t last = first;
  for (std::int64_t d = corpus_->document_at(first) + 1; d < corpus_->documents(); ++d) {
    const std::int64_t start = corpus_->document_start(d);
    if (start >= first + seq_len_) break;
    if (start == last) continue;  // the previous document is empty
    document_starts.push_back(base + static_cast<std::int32_t>(start - first));
    last = start;
  }
}

}  // namespace octet::data
