// Byte-pair encoding of one word: joins neighbouring symbols pair by pair. The pair of the lowest rank is joined first; among pairs of
// equal rank, the leftmost. Source: Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units" (2016).
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::data {

struct BpeMerge {
  std::int32_t left, right, rank, result;  // ids, except `rank`; if two merges have the same pair, the later one counts
};

struct BpeModel {
  // Text and id of the tokens that a whole word, or a single character, may become. Ids are not negative.
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;
  std::vector<BpeMerge> merges;
  // The symbols of a word before any merge. `bytes` (byte-level): the id of each byte. `characters`: the id of each character in the
  // vocabulary; a character that is not in the vocabulary becomes the ids of its bytes.
  enum class Symbols { bytes, characters } symbols = Symbols::bytes;
  std::array<std::int32_t, 256> byte_ids{};
  bool whole_words = false;  // a word in the vocabulary becomes its id, even if merges would give other tokens (ignore_merges)
};

// Immutable. Many threads may use it at once, each with its own Scratch.
class Bpe {
 public:
  explicit Bpe(const BpeModel& model);

  struct Scratch {
    std::vector<std::int32_t> ids, next_ranks, next_results, previous, next;
    std::vector<std::uint64_t> queue;
  };
  // Appends the ids of `word`. The word must be valid UTF-8 if the symbols are characters.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  // Whether some merge joins a symbol that ends in byte `last` with a symbol that begins with byte `first`. If none does, a word may be
  // cut between these bytes without changing its ids.
  bool joins(char last, char first) const { return joins_[place(last, first)]; }

 private:
  struct Joined {
    std::int32_t rank, result;  // `rank` is kNever if no merge joins the pair
  };
  static constexpr std::int32_t kNever = INT32_MAX;
  static constexpr std::int32_t kNone = -1;

  static std::size_t place(char last, char first) {
    return static_cast<std::size_t>(static_cast<unsigned char>(last)) << 8 | static_cast<unsigned char>(first);
  }
  Joined join(std::int32_t left, std::int32_t right) const;
  std::int32_t find(std::string_view text) const;  // id in the vocabulary, or kNone
  void begin(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  BpeModel::Symbols symbols_;
  bool whole_words_;
  std::array<std::int32_t, 256> byte_ids_;
  std::bitset<65536> joins_;
  std::size_t longest_ = 0;  // size of the longest word in the vocabulary

  // Hash tables with open addressing. Their sizes are powers of two, and at most half of the slots are in use.
  struct WordSlot {
    std::uint32_t hash = 0, begin = 0, size = 0;  // the word is text_[begin, begin + size)
    std::int32_t id = kNone;
  };
  struct PairSlot {
    std::uint64_t pair = UINT64_MAX;
    Joined joined{};
  };
  std::string text_;
  std::vector<WordSlot> words_;
  std::vector<PairSlot> pairs_;
};

}  // namespace octet::data
