// Collects all differences between the tensors that are expected and the tensors that exist, and reports them in one error.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace octet::checkpoint {

// Whether any of the globs matches `name`.
bool glob_match_any(const std::vector<std::string>& globs, std::string_view name);

struct Mismatch {
  std::vector<std::string> absent;           // files that are expected but do not exist
  std::vector<std::string> surplus;          // files that exist but are not expected; not an error, but suggested for absent files
  std::vector<std::string> missing;          // names of tensors that are expected but do not exist
  std::vector<std::string> unexpected;       // names of tensors that exist but are not expected
  std::vector<std::string> different;        // sentences such as "NAME is F32 [2, 3], expected [3, 2]"
  std::map<std::string, std::string> files;  // the file of a missing or unexpected tensor; empty if there is only one file

  // Throws Error{data} "SOURCE: ...", in one line, if there is any difference (`surplus` alone is none). For each missing file or
  // tensor, suggests the nearest unexpected name, and no name twice.
  void raise(const std::string& source) const;
};

}  // namespace octet::checkpoint
