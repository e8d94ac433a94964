// Finds added tokens, such as "<|end_of_text|>": tokens that a text holds verbatim and that are found before the text is divided into
// words.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::data {

// Immutable. If several tokens begin at the same place, the longest wins. If two tokens have the same text, the first wins.
class AddedTokens {
 public:
  struct Token {
    std::string text;  // not empty
    std::int32_t id;
  };
  explicit AddedTokens(const std::vector<Token>& tokens);

  bool empty() const { return begins_.none(); }

  struct Match {
    std::size_t begin, end;  // if nothing is found, both are the size of the text
    std::int32_t id;
  };
  // Finds the first token that begins at or after `from`.
  Match find(std::string_view text, std::size_t from) const;

 private:
  // A trie: every token is a path from the root. Most searches end after a step, because few characters of a text begin a token.
  struct Node {
    std::vector<std::pair<char, std::uint32_t>> next;
    std::int32_t id = -1;
  };
  std::vector<Node> nodes_;
  std::bitset<256> begins_;
};

}  // namespace octet::data
