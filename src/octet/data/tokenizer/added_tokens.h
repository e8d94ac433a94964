// Tokens that stand in a text verbatim and are found before anything else: "<|end_of_text|>".
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::data {

// Immutable. Of several that begin at one place the longest counts, of two with the same text the first.
class AddedTokens {
 public:
  struct Token {
    std::string text;  // not empty
    std::int32_t id;
  };
  explicit AddedTokens(const std::vector<Token>& tokens);

  bool empty() const { return begins_.none(); }

  struct Match {
    std::size_t begin, end;  // end of the text, twice, when there is none
    std::int32_t id;
  };
  // The first one at or behind `from`.
  Match find(std::string_view text, std::size_t from) const;

 private:
  // Every token is a way from the root; few words of a text go further than a step.
  struct Node {
    std::vector<std::pair<char, std::uint32_t>> next;
    std::int32_t id = -1;
  };
  std::vector<Node> nodes_;
  std::bitset<256> begins_;
};

}  // namespace octet::data
