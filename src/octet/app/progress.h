// The lines of one run of many, as it goes on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octet::app {

// On a terminal one line that is rewritten, elsewhere a line every tenth of the run.
class Progress {
 public:
  Progress(std::string label, std::int64_t steps);
  void operator()(std::string_view line);
  void clear() const;  // the terminal's line, before something else is said
  void end() const;

 private:
  std::string label_;
  std::int64_t every_, lines_ = 0;
  bool terminal_;
};

}  // namespace octet::app
