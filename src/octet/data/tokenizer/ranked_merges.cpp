#include "octet/data/tokenizer/ranked_merges.h"

#include <string_view>
#include <unordered_map>

#include "octet/base/require.h"

namespace octet::data {

std::vector<BpeMerge> ranked_merges(std::span<const RankedToken> tokens) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  ids.reserve(tokens.size());
  for (const RankedToken& token : tokens) ids.emplace(token.text, token.id);
  std::vector<BpeMerge> merges;
  for (const RankedToken& token : tokens) {
    require(token.text.size() <= kLongestRanked, "ranked merges: a token of ", token.text.size(), " bytes");
    const std::string_view text = token.text;
    for (std::size_t at = 1; at < text.size(); ++at) {
      const auto left = ids.find(text.substr(0, at));
      if (left == ids.end()) continue;
      const auto right = ids.find(text.substr(at));
      if (right != ids.end()) merges.push_back({left->second, right->second, token.rank, token.id});
    }
  }
  return merges;
}

}  // namespace octet::data
