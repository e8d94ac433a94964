// Names that people type: globs, and the nearest known name to an unknown one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Whole-name glob: '*' any run of characters (dots included), '?' one character, everything else itself.
bool glob_match(std::string_view pattern, std::string_view name);

// The candidate with the smallest edit distance, or "" when none is near (distance over 2 and over a third of the length).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// The same for each of several names, where a candidate is given to one of them at most: the nearest pairs come first.
std::vector<std::string> nearest_names(std::span<const std::string> names, std::span<const std::string> candidates);

// " (did you mean X?)" or "".
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace octet
