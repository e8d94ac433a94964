// Matching of names that people type: globs, and suggestions for misspelled names.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Matches `pattern` against the whole name. '*' matches any run of characters, dots included; '?' matches one character; [ab0-9]
// matches one of these, and [!ab] one other character, as in a shell; every other character matches itself.
bool glob_match(std::string_view pattern, std::string_view name);

// The number of letters to insert, to delete or to replace in one name to get the other. The work is the product of the lengths.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the candidate with the smallest edit distance to `name`, or "" if none is close. A candidate is close if its distance
// is at most max(2, length of `name` / 3). A candidate without the first letter of a `name` of at most four letters is never
// close, and neither is a pair of very long names.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// Finds the nearest candidate for each of several names, or "". The closest pairs are matched first, and each candidate is used
// at most once. Names that come from a file may be many and long: the work is bounded, and names beyond the bound get "".
std::vector<std::string> nearest_names(std::span<const std::string> names, std::span<const std::string> candidates);

// Returns " (did you mean X?)" with the nearest candidate, or "" if none is close. If `name` is the beginning of candidates, and
// of at most six, they are all named: " (did you mean fp8_block or fp8_row?)".
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace octet
