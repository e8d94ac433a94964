// A cache of the ids of recent words, because words repeat and byte-pair encoding is expensive. Its size is fixed; a new word replaces
// the word in its slot.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace octet::data {

class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 22, kMostIds = 8;

  // Returns the ids of `word`, which must not be empty, or an empty span if the word is not in the cache. The span is valid until the
  // next insert().
  std::span<const std::int32_t> find(std::string_view word) {
    hash_ = hash_of(word);
    if (word.size() > kLongestWord) return {};
    const Entry& entry = entries_[hash_ % kEntries];
    if (entry.hash != hash_ || entry.size != word.size() || std::memcmp(entry.word.data(), word.data(), word.size()) != 0)
      return {};
    return std::span(entry.ids).first(entry.count);
  }

  // Stores the ids of a word. `word` must be the argument of the last find(), which did not find it.
  void insert(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.size() > kLongestWord || ids.size() > kMostIds) return;
    Entry& entry = entries_[hash_ % kEntries];
    entry.hash = hash_;
    entry.size = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  struct Entry {  // fills one cache line of the processor
    std::uint64_t hash = 0;
    std::array<char, kLongestWord> word{};
    std::uint8_t size = 0, count = 0;
    std::array<std::int32_t, kMostIds> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  // Hashes the length and the first and last eight bytes. This is fast, and few words agree in all three.
  static std::uint64_t hash_of(std::string_view word) {
    std::uint64_t first = 0, last = 0;
    const std::size_t n = word.size();
    if (n >= 8) {
      std::memcpy(&first, word.data(), 8);
      std::memcpy(&last, word.data() + n - 8, 8);
    } else if (n >= 4) {
      std::uint32_t low = 0, high = 0;
      std::memcpy(&low, word.data(), 4);
      std::memcpy(&high, word.data() + n - 4, 4);
      first = low;
      last = high;
    } else {
      first = static_cast<unsigned char>(word[0]);
      last = static_cast<std::uint64_t>(static_cast<unsigned char>(word[n / 2])) << 8 | static_cast<unsigned char>(word[n - 1]);
    }
    std::uint64_t hash = (first ^ n) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ last) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
  std::uint64_t hash_ = 0;
};

}  // namespace octet::data
