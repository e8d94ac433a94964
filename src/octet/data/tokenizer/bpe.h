// Byte-pair encoding of one word: symbols are joined pair by pair, always the pair of lowest rank and among equals the leftmost.
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
  std::int32_t left, right, rank, result;  // ids but for the rank; two merges of one pair: the later one counts
};

struct BpeModel {
  // What a word, or a character of it, may be as a whole. Ids are not negative.
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;
  std::vector<BpeMerge> merges;
  // What a word begins as. Byte-level: every byte its id. Characters: each its id of the vocabulary, and where it has none its
  // bytes.
  enum class Symbols { bytes, characters } symbols = Symbols::bytes;
  std::array<std::int32_t, 256> byte_ids{};
  bool whole_words = false;  // a word of the vocabulary is its id, whatever the merges say
};

// Immutable; may be used from many threads at once, each with a Scratch of its own.
class Bpe {
 public:
  explicit Bpe(const BpeModel& model);

  struct Scratch {
    std::vector<std::int32_t> ids, next_ranks, next_results, previous, next;
    std::vector<std::uint64_t> queue;
  };
  // Appends the ids of `word`, which must be valid UTF-8 where symbols are characters.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  // Whether some merge joins a symbol that ends in one byte with one that begins with the other. Between two symbols that none
  // could join a word may be cut, and its ids stay the same.
  bool joins(char last, char first) const { return joins_[place(last, first)]; }

 private:
  struct Joined {
    std::int32_t rank, result;  // kNever where no merge joins the pair
  };
  static constexpr std::int32_t kNever = INT32_MAX;
  static constexpr std::int32_t kNone = -1;

  static std::size_t place(char last, char first) {
    return static_cast<std::size_t>(static_cast<unsigned char>(last)) << 8 | static_cast<unsigned char>(first);
  }
  Joined join(std::int32_t left, std::int32_t right) const;
  std::int32_t find(std::string_view text) const;  // or kNone
  void begin(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  BpeModel::Symbols symbols_;
  bool whole_words_;
  std::array<std::int32_t, 256> byte_ids_;
  std::bitset<65536> joins_;
  std::size_t longest_ = 0;  // word of the vocabulary

  // Open addressing, a power of two of slots, at most half of them in use.
  struct WordSlot {
    std::uint32_t hash = 0, begin = 0, size = 0;  // in text_
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
