#include "octet/data/tokenizer/added_tokens.h"

#include <algorithm>

namespace octet::data {

AddedTokens::AddedTokens(const std::vector<Token>& tokens) : nodes_(1) {
  for (const Token& token : tokens) {
    std::uint32_t at = 0;
    for (const char c : token.text) {
      const auto& next = nodes_[at].next;
      const auto found = std::find_if(next.begin(), next.end(), [&](const auto& step) { return step.first == c; });
      if (found != next.end()) {
        at = found->second;
        continue;
      }
      const auto fresh = static_cast<std::uint32_t>(nodes_.size());
      nodes_[at].next.emplace_back(c, fresh);
      nodes_.emplace_back();
      at = fresh;
    }
    if (token.text.empty()) continue;
    begins_.set(static_cast<unsigned char>(token.text[0]));
    if (nodes_[at].id < 0) nodes_[at].id = token.id;
  }
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from) const {
  if (empty()) from = text.size();
  for (; from < text.size(); ++from) {
    if (!begins_[static_cast<unsigned char>(text[from])]) continue;
    Match match{text.size(), text.size(), -1};
    std::uint32_t at = 0;
    for (std::size_t i = from; i < text.size(); ++i) {
      const auto& next = nodes_[at].next;
      const auto found = std::find_if(next.begin(), next.end(), [&](const auto& step) { return step.first == text[i]; });
      if (found == next.end()) break;
      at = found->second;
      if (nodes_[at].id >= 0) match = {from, i + 1, nodes_[at].id};
    }
    if (match.id >= 0) return match;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace octet::data
