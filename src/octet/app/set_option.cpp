#include "octet/app/set_option.h"

#include <algorithm>

#include "octet/base/names.h"
#include "octet/base/require.h"

namespace octet::app {

void apply_set(train::Config& config, const std::vector<std::string>& assignments, const std::vector<std::string>& used) {
  for (const std::string& assignment : assignments) {
    train::apply_override(config, assignment, "--set ");
    const std::string key = assignment.substr(0, assignment.find('='));
    demand(key != "precision.recipe", ExitCode::config, "--set ", assignment, ": --recipe says which");
    demand(key != "run.device", ExitCode::config, "--set ", assignment, ": --device says which");
    demand(std::any_of(used.begin(), used.end(), [&](const std::string& pattern) { return glob_match(pattern, key); }),
           ExitCode::config, "--set ", assignment, ": this command does not use the key; it uses ", joined(used));
  }
}

}  // namespace octet::app
