// What is wrong with a set of tensors as a whole, collected so that the user reads it once.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace octet::checkpoint {

// Whether one of the globs matches.
bool glob_match_any(const std::vector<std::string>& globs, std::string_view name);

struct Mismatch {
  std::vector<std::string> absent;      // files that are asked for and not there
  std::vector<std::string> surplus;     // files that are there and not asked for, which is no fault
  std::vector<std::string> missing;     // names that are asked for and not there
  std::vector<std::string> unexpected;  // names that are there and not asked for
  std::vector<std::string> different;   // "NAME is F32 [2, 3], expected [3, 2]"
  std::map<std::string, std::string> files;  // where missing ones should be and unexpected ones are; of one file nothing

  // Throws Error{data} "SOURCE: ..." in one line when there is anything: for what is missing the nearest names of
  // what was not asked for, each once.
  void raise(const std::string& source) const;
};

}  // namespace octet::checkpoint
