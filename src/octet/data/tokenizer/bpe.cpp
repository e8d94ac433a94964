#include "octet/data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "octet/base/checksum.h"
#include "octet/base/require.h"
#include "octet/data/tokenizer/utf8.h"

namespace octet::data {
namespace {

// For words of more symbols, a priority queue is faster than a search over all pairs.
constexpr std::size_t kShort = 48;

std::uint64_t hash_of(std::string_view text) { return checksum(std::as_bytes(std::span(text.data(), text.size()))); }

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::size_t mixed(std::uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(pair ^ pair >> 32);
}

std::size_t slots_for(std::size_t count) { return std::bit_ceil(std::max<std::size_t>(2 * count, 16)); }

}  // namespace

Bpe::Bpe(const BpeModel& model)
    : symbols_(model.symbols),
      whole_words_(model.whole_words),
      byte_ids_(model.byte_ids),
      words_(slots_for(model.vocabulary.size())),
      pairs_(slots_for(model.merges.size())) {
  std::int32_t largest = 0;
  for (const auto& [word, id] : model.vocabulary) {
    require(id >= 0, "bpe: id ", id);
    largest = std::max(largest, id);
    longest_ = std::max(longest_, word.size());
    const std::uint64_t hash = hash_of(word);
    std::size_t slot = hash & (words_.size() - 1);
    while (words_[slot].id != kNone && std::string_view(text_).substr(words_[slot].begin, words_[slot].size) != word) {
      slot = (slot + 1) & (words_.size() - 1);
    }
    require(text_.size() + word.size() <= std::numeric_limits<std::uint32_t>::max(), "bpe: a vocabulary of 4 GiB");
    words_[slot] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(text_.size()),
                    static_cast<std::uint32_t>(word.size()), id};
    text_ += word;
  }
  // Texts by id, for joins_. A merge of a token outside the vocabulary can never apply.
  std::vector<std::string_view> by_id(static_cast<std::size_t>(largest) + 1);
  for (const auto& [word, id] : model.vocabulary) by_id[static_cast<std::size_t>(id)] = word;
  for (const BpeMerge& merge : model.merges) {
    require(
        std::min({merge.left, merge.right, merge.result}) >= 0 && std::max({merge.left, merge.right, merge.result}) <= largest,
        "bpe: merge of ", merge.left, " and ", merge.right, " to ", merge.result, " beyond id ", largest);
    const std::string_view left = by_id[static_cast<std::size_t>(merge.left)],
                           right = by_id[static_cast<std::size_t>(merge.right)];
    if (!left.empty() && !right.empty()) joins_.set(place(left.back(), right.front()));
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t slot = mixed(pair) & (pairs_.size() - 1);
    while (pairs_[slot].pair != UINT64_MAX && pairs_[slot].pair != pair) slot = (slot + 1) & (pairs_.size() - 1);
    pairs_[slot] = {pair, {merge.rank, merge.result}};
  }
}

Bpe::Joined Bpe::join(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = mixed(pair) & (pairs_.size() - 1);; slot = (slot + 1) & (pairs_.size() - 1)) {
    if (pairs_[slot].pair == pair) return pairs_[slot].joined;
    if (pairs_[slot].pair == UINT64_MAX) return {kNever, kNone};
  }
}

std::int32_t Bpe::find(std::string_view text) const {
  if (text.size() > longest_) return kNone;
  const std::uint64_t hash = hash_of(text);
  for (std::size_t slot = hash & (words_.size() - 1); words_[slot].id != kNone; slot = (slot + 1) & (words_.size() - 1)) {
    const WordSlot& word = words_[slot];
    if (word.hash == hash >> 32 && std::string_view(text_).substr(word.begin, word.size) == text) return word.id;
  }
  return kNone;
}

void Bpe::begin(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  for (std::size_t at = 0; at < word.size();) {
    std::size_t bytes = 1;
    if (symbols_ == BpeModel::Symbols::characters) {
      bytes = utf8_char(word, at).bytes;
      if (const std::int32_t id = find(word.substr(at, bytes)); id != kNone) {
        symbols.push_back(id);
        at += bytes;
        continue;
      }
    }
    for (; bytes > 0; --bytes, ++at) symbols.push_back(byte_ids_[static_cast<unsigned char>(word[at])]);
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (whole_words_) {
    if (const std::int32_t id = find(word); id != kNone) return ids.push_back(id);
  }
  begin(word, scratch.ids);
  scratch.ids.size() <= kShort ? merge_short(scratch) : merge_long(scratch);
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::merge_short(Scratch& scratch) const {
  std::int32_t* ids = scratch.ids.data();
  std::size_t count = scratch.ids.size();
  std::array<Joined, kShort> joined;  // joined[i]: the merge of symbols i and i + 1
  for (std::size_t i = 0; i + 1 < count; ++i) joined[i] = join(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (joined[i].rank < joined[best].rank) best = i;
    }
    if (joined[best].rank == kNever) break;
    ids[best] = joined[best].result;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      joined[i - 1] = joined[i];
    }
    if (best > 0) joined[best - 1] = join(ids[best - 1], ids[best]);
    if (best + 1 < count) joined[best] = join(ids[best], ids[best + 1]);
  }
  scratch.ids.resize(count);
}

// The queue holds the rank and place of every pair that can be joined. An entry is skipped if its pair has changed since it was queued.
void Bpe::merge_long(Scratch& scratch) const {
  std::vector<std::int32_t>&ids = scratch.ids, &ranks = scratch.next_ranks, &results = scratch.next_results;
  std::vector<std::int32_t>&previous = scratch.previous, &next = scratch.next;
  std::vector<std::uint64_t>& queue = scratch.queue;
  const std::size_t count = ids.size();
  require(count < INT32_MAX, "bpe: a word of ", count, " symbols");
  ranks.assign(count, kNever);
  results.assign(count, kNone);
  previous.resize(count);
  next.resize(count);
  queue.clear();
  const auto index = [](std::int32_t i) { return static_cast<std::size_t>(i); };
  const auto end = static_cast<std::int32_t>(count);
  const auto look = [&](std::int32_t at) {  // queues the pair that begins at `at`, if a merge joins it
    const Joined joined = next[index(at)] == end ? Joined{kNever, kNone} : join(ids[index(at)], ids[index(next[index(at)])]);
    ranks[index(at)] = joined.rank;
    results[index(at)] = joined.result;
    return joined.rank != kNever;
  };
  const auto entry = [&](std::int32_t at) { return pair_of(ranks[index(at)], at); };
  for (std::int32_t i = 0; i < end; ++i) {
    previous[index(i)] = i - 1;
    next[index(i)] = i + 1;
    if (look(i)) queue.push_back(entry(i));
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](std::int32_t at) {
    if (!look(at)) return;
    queue.push_back(entry(at));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const std::uint64_t top = queue.back();
    queue.pop_back();
    const auto at = static_cast<std::int32_t>(top & UINT32_MAX);
    if (ids[index(at)] == kNone || ranks[index(at)] == kNever || entry(at) != top) continue;
    const std::int32_t right = next[index(at)];
    ids[index(at)] = results[index(at)];
    ids[index(right)] = kNone;
    ranks[index(right)] = kNever;
    next[index(at)] = next[index(right)];
    if (next[index(at)] != end) previous[index(next[index(at)])] = at;
    push(at);
    if (previous[index(at)] >= 0) push(previous[index(at)]);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), kNone), ids.end());
}

}  // namespace octet::data
