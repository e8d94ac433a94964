#include "octet/data/stream.h"

#include <algorithm>
#include <array>

#include "octet/base/require.h"

namespace octet::data {

Stream::Stream(const Corpus& corpus) : Stream(corpus, std::array{Documents{0, corpus.documents()}}) {}

Stream::Stream(const Corpus& corpus, std::span<const Documents> ranges) : corpus_(&corpus) {
  std::int64_t end = -1;  // of the last piece, in the corpus
  for (const Documents& range : ranges) {
    const std::int64_t begin = corpus.document_start(range.first);
    if (begin != end) pieces_.push_back({tokens_, begin});
    end = corpus.document_start(range.last);
    tokens_ += end - begin;
  }
}

template <class Visit>
void Stream::each_piece(std::int64_t first, std::int64_t count, Visit&& visit) const {
  require(first >= 0 && first + count <= tokens_, "stream: tokens ", first, " to ", first + count, " of ", tokens_);
  auto piece =
      std::upper_bound(pieces_.begin(), pieces_.end(), first, [](std::int64_t at, const Piece& p) { return at < p.at; }) - 1;
  for (std::int64_t done = 0; done < count; ++piece) {
    const std::int64_t end = piece + 1 == pieces_.end() ? tokens_ : (piece + 1)->at;
    const std::int64_t here = std::min(count - done, end - (first + done));
    if (here > 0) visit(done, piece->in_corpus + (first + done - piece->at), here);
    done += here;
  }
}

void Stream::read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab_size) const {
  each_piece(first, static_cast<std::int64_t>(out.size()), [&](std::int64_t offset, std::int64_t in_corpus, std::int64_t count) {
    corpus_->read(in_corpus, out.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count)), vocab_size);
  });
}

void Stream::read_loss_mask(std::int64_t first, std::span<std::uint8_t> out) const {
  each_piece(first, static_cast<std::int64_t>(out.size()), [&](std::int64_t offset, std::int64_t in_corpus, std::int64_t count) {
    corpus_->read_loss_mask(in_corpus, out.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count)));
  });
}

void Stream::document_starts(std::int64_t first, std::int64_t count, std::int32_t base, std::vector<std::int32_t>& starts) const {
  each_piece(first, count, [&](std::int64_t offset, std::int64_t in_corpus, std::int64_t tokens) {
    starts.push_back(base + static_cast<std::int32_t>(offset));  // a piece begins with a document
    std::int64_t last = in_corpus;
    for (std::int64_t d = corpus_->document_at(in_corpus) + 1; d < corpus_->documents(); ++d) {
      const std::int64_t start = corpus_->document_start(d);
      if (start >= in_corpus + tokens) break;
      if (start == last) continue;  // the previous document is empty
      starts.push_back(base + static_cast<std::int32_t>(offset + start - in_corpus));
      last = start;
    }
  });
}

}  // namespace octet::data
