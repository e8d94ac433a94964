// Prints once what several ranks of an attempt say before they end.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "octet/app/process_group.h"

namespace octet::app {

class LastSentences {
 public:
  // Returns whether the line is the sentence that a rank ends with, and another rank has printed the same one before.
  bool repeats(StandardStream stream, std::string_view line) {
    return stream == StandardStream::err && line.starts_with("octet: ") && !said_.emplace(line).second;
  }

 private:
  std::set<std::string, std::less<>> said_;
};

}  // namespace octet::app
