#include "octet/data/packs.h"

#include <algorithm>
#include <map>

#include "octet/base/require.h"

namespace octet::data {
namespace {

std::int64_t length_of(const StreamRange& range) { return range.last - range.first; }

}  // namespace

Packs::Packs(std::span<const StreamRange> documents, std::int64_t seq_len) : documents_(std::ssize(documents)) {
  require(seq_len >= 1, "packs: seq_len ", seq_len);
  std::vector<StreamRange> parts;
  parts.reserve(documents.size());
  for (const StreamRange& document : documents) {
    require(length_of(document) >= 1, "packs: a document of ", length_of(document), " inputs");
    split_documents_ += length_of(document) > seq_len;
    tokens_ += length_of(document);
    for (std::int64_t first = document.first; first < document.last; first += seq_len)
      parts.push_back({first, std::min(first + seq_len, document.last)});
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const StreamRange& a, const StreamRange& b) { return length_of(a) > length_of(b); });

  std::vector<std::int64_t> sequence_of(parts.size());
  std::map<std::int64_t, std::vector<std::int64_t>> with_room;  // sequences by the number of free places
  std::int64_t sequences = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::int64_t length = length_of(parts[p]);
    const auto fullest = with_room.lower_bound(length);
    std::int64_t room = seq_len;
    if (fullest == with_room.end()) {
      sequence_of[p] = sequences++;
    } else {
      room = fullest->first;
      sequence_of[p] = fullest->second.back();
      fullest->second.pop_back();
      if (fullest->second.empty()) with_room.erase(fullest);
    }
    if (room > length) with_room[room - length].push_back(sequence_of[p]);
  }

  begins_.assign(static_cast<std::size_t>(sequences) + 1, 0);
  for (const std::int64_t s : sequence_of) ++begins_[static_cast<std::size_t>(s) + 1];
  for (std::size_t s = 1; s < begins_.size(); ++s) begins_[s] += begins_[s - 1];
  parts_.resize(parts.size());
  std::vector<std::int64_t> next(begins_.begin(), begins_.end() - 1);
  for (std::size_t p = 0; p < parts.size(); ++p)
    parts_[static_cast<std::size_t>(next[static_cast<std::size_t>(sequence_of[p])]++)] = parts[p];
}

std::vector<StreamRange> Packs::documents_of(const Stream& stream) {
  std::vector<StreamRange> documents;
  stream.each_document([&](std::int64_t first, std::int64_t tokens) {
    if (tokens >= 2) documents.push_back({first, first + tokens - 1});
  });
  return documents;
}

std::span<const StreamRange> Packs::sequence(std::int64_t s) const {
  require(s >= 0 && s < count(), "packs: sequence ", s, " of ", count());
  const auto begin = static_cast<std::size_t>(begins_[static_cast<std::size_t>(s)]);
  return std::span(parts_).subspan(begin, static_cast<std::size_t>(begins_[static_cast<std::size_t>(s) + 1]) - begin);
}

std::vector<StreamRange> Packs::without(const std::vector<bool>& used) const {
  require(static_cast<std::int64_t>(used.size()) == count(), "packs: ", used.size(), " sequences of ", count());
  std::vector<StreamRange> left;
  for (std::int64_t s = 0; s < count(); ++s) {
    if (used[static_cast<std::size_t>(s)]) continue;
    const auto parts = sequence(s);
    left.insert(left.end(), parts.begin(), parts.end());
  }
  std::sort(left.begin(), left.end(), [](const StreamRange& a, const StreamRange& b) { return a.first < b.first; });
  return left;
}

}  // namespace octet::data
