// What is wrong with a set of tensors as a whole, collected so that the user reads it once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::checkpoint {

// Whether one of the globs matches.
bool glob_match_any(const std::vector<std::string>& globs, std::string_view name);

struct Mismatch {
  std::vector<std::string> missing;     // names that are asked for and not there
  std::vector<std::string> unexpected;  // names that are there and not asked for
  std::vector<std::string> different;   // "NAME is F32 [2, 3], expected [3, 2]"

  // Throws Error{data} "SOURCE: ..." in one line when there is anything: for missing names the nearest unexpected
  // ones, each once.
  void raise(const std::string& source) const;
};

}  // namespace octet::checkpoint
