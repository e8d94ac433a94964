#include "octet/checkpoint/ranks.h"

#include <algorithm>
#include <utility>

#include "octet/base/require.h"

namespace octet::checkpoint {

std::vector<std::string> gather(const Ranks& ranks, const std::string& what, std::string value) {
  const auto key = [&](int rank) { return concat(ranks.name, "/", what, "/", rank); };
  if (ranks.rank != 0) {
    ranks.set(key(ranks.rank), value, 1);
    return {};
  }
  std::vector<std::string> values = {std::move(value)};
  for (int rank = 1; rank < ranks.size; ++rank) values.push_back(ranks.get(key(rank)));
  return values;
}

std::string broadcast(const Ranks& ranks, const std::string& what, std::string value) {
  if (ranks.size == 1) return value;
  const std::string key = concat(ranks.name, "/", what);
  if (ranks.rank != 0) return ranks.get(key);
  ranks.set(key, value, ranks.size - 1);
  return value;
}

std::string failure_of(const std::vector<std::string>& failures) {
  const auto failed = [](const std::string& failure) { return !failure.empty(); };
  const auto first = std::find_if(failures.begin(), failures.end(), failed);
  if (first == failures.end() || failures.size() == 1) return first == failures.end() ? "" : *first;
  const auto others = std::count_if(first + 1, failures.end(), failed);
  return concat("rank ", first - failures.begin(), ": ", *first,
                others == 0   ? ""
                : others == 1 ? " (one more rank failed as well)"
                              : concat(" (", others, " more ranks failed as well)"));
}

std::string common_failure(const Ranks& ranks, const std::string& what, std::string failure) {
  return broadcast(ranks, what, failure_of(gather(ranks, what, std::move(failure))));
}

}  // namespace octet::checkpoint
