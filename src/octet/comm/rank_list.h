// Lists of ranks for messages.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace octet::comm {

// "rank 2", "ranks 2, 5 and 7"; of more than eight ranks, the first eight and "and N more".
inline std::string rank_list(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 8;
  const std::size_t named = std::min(ranks.size(), kNamed), more = ranks.size() - named;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == named && more == 0 ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return more == 0 ? text : text + " and " + std::to_string(more) + " more";
}

}  // namespace octet::comm
