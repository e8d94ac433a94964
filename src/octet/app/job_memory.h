// Texts that a supervisor keeps for its ranks, attempt after attempt, in memory that they inherit. Unlike a file, nobody edits
// them, and no storage fails.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "octet/base/descriptor.h"

namespace octet::app {

// The configuration with which the job began. Its file may have been edited since, for the next run.
inline constexpr const char* kConfigOfJob = "OCTET_JOB_CONFIG";
// The copies of s3:// objects that an attempt has used on this host (fetched.h).
inline constexpr const char* kCopiesOfJob = "OCTET_JOB_COPIES";

class JobMemory {
 public:
  // `name` is one of the above. Throws Error{internal}.
  explicit JobMemory(const char* name, std::string_view text = "");
  std::string variable() const;  // "NAME=PATH", for the environment of a rank

 private:
  const char* name_;
  Descriptor file_;
};

// Returns the text that this process has inherited, or nothing without a supervisor. Throws Error{data} if it cannot be read.
std::optional<std::string> text_of_job(const char* name);
// Replaces that text, for the attempts that follow. Does nothing without a supervisor. Throws Error{internal}.
void set_text_of_job(const char* name, std::string_view text);

}  // namespace octet::app
