#include "octet/base/names.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace octet {
namespace {

// The maximum number of letter pairs that one call compares, which takes about a tenth of a second.
constexpr std::size_t kMostWork = 30'000'000;

// Returns the edit distance if it is below `bound`, otherwise `bound` or more. Takes its work from `left`; nothing is close any
// more if too little is left.
std::size_t distance_below(std::size_t bound, std::string_view a, std::string_view b, std::size_t& left) {
  const std::size_t lengths = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  const bool too_far = lengths >= bound;  // the distance is at least the difference of the lengths
  const std::size_t work = too_far ? 1 : 1 + a.size() * b.size();
  if (too_far || work > left) {
    left -= std::min<std::size_t>(left, 1);
    return bound;
  }
  left -= work;
  return edit_distance(a, b);
}

// The smallest edit distance at which a candidate is no longer suggested.
std::size_t far_distance(std::string_view name) { return std::max<std::size_t>(2, name.size() / 3) + 1; }

// Whether a candidate lacks the first letter of a short name. That is rarely a typing error: gpu and cpu, B200 and H200.
bool is_another_thing(std::string_view name, std::string_view candidate) {
  constexpr std::size_t kShort = 4;
  const auto lower = [](char letter) { return std::tolower(static_cast<unsigned char>(letter)); };
  return !name.empty() && name.size() <= kShort &&
         std::none_of(candidate.begin(), candidate.end(), [&](char letter) { return lower(letter) == lower(name.front()); });
}

// `members` is the text between the brackets of a class.
bool is_in_class(std::string_view members, char c) {
  const bool excludes = members.starts_with('!');
  if (excludes) members.remove_prefix(1);
  bool found = false;
  while (!members.empty()) {
    const bool range = members.size() >= 3 && members[1] == '-';
    found = found || (members[0] <= c && c <= members[range ? 2 : 0]);
    members.remove_prefix(range ? 3 : 1);
  }
  return found != excludes;
}

// Returns how many characters of `pattern`, which does not begin with '*', match the character `c`: 0 if it does not match.
std::size_t matched_by(std::string_view pattern, char c) {
  if (pattern.empty()) return 0;
  if (pattern.front() == '[') {
    const std::size_t first = pattern.starts_with("[!") ? 2 : 1;
    const std::size_t end = pattern.find(']', first + 1);  // a ']' that comes first is a member
    if (end != std::string_view::npos) return is_in_class(pattern.substr(1, end - 1), c) ? end + 1 : 0;
  }
  return pattern.front() == '?' || pattern.front() == c ? 1 : 0;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

bool glob_match(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (const std::size_t matched = matched_by(pattern.substr(p), name[n]); matched > 0) {
      p += matched;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = far_distance(name), left = kMostWork;
  for (const std::string& candidate : candidates) {
    if (is_another_thing(name, candidate)) continue;
    const std::size_t distance = distance_below(best_distance, name, candidate, left);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> nearest_names(std::span<const std::string> names, std::span<const std::string> candidates) {
  struct Pair {
    std::size_t distance, name, candidate;
  };
  std::vector<Pair> pairs;
  std::size_t left = kMostWork;
  for (std::size_t n = 0; n < names.size() && left > 0; ++n) {
    const std::size_t far = far_distance(names[n]);
    for (std::size_t c = 0; c < candidates.size() && left > 0; ++c) {
      const std::size_t distance = distance_below(far, names[n], candidates[c], left);
      if (distance < far) pairs.push_back({distance, n, c});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.distance < b.distance; });
  std::vector<std::string> nearest(names.size());
  std::vector<bool> given(candidates.size());
  for (const Pair& pair : pairs) {
    if (!nearest[pair.name].empty() || given[pair.candidate]) continue;
    nearest[pair.name] = candidates[pair.candidate];
    given[pair.candidate] = true;
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  constexpr std::size_t kLeast = 2, kMost = 6;  // letters, and candidates
  std::vector<std::string> meant;
  for (const std::string& candidate : candidates) {
    if (name.size() >= kLeast && candidate.starts_with(name)) meant.push_back(candidate);
  }
  if (meant.empty() || meant.size() > kMost) {
    meant.assign(1, nearest_name(name, candidates));
    if (meant.front().empty()) return "";
  }
  std::string list = meant.front();
  for (std::size_t i = 1; i < meant.size(); ++i) list += (i + 1 < meant.size() ? ", " : " or ") + meant[i];
  return " (did you mean " + list + "?)";
}

}  // namespace octet
