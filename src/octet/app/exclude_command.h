// The command that `octet launch --on-exclude` runs when a host is unfit, or when other hosts replace a host that has failed
// too often.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace octet::app {

class ExcludeCommand {
 public:
  // A command for the shell; "": none.
  explicit ExcludeCommand(std::string command) : command_(std::move(command)) {}
  ExcludeCommand(const ExcludeCommand&) = delete;
  ExcludeCommand& operator=(const ExcludeCommand&) = delete;

  // Starts the command with OCTET_NODE, OCTET_CODE and OCTET_REASON, and does not wait for it. It may outlive this process.
  void start(const std::string& node, int code, const std::string& reason);
  // Returns a sentence for each start that has failed since the last call. Does not wait.
  std::vector<std::string> failures();

 private:
  std::string command_;
  std::vector<pid_t> running_;
  std::vector<std::string> failures_;
};

}  // namespace octet::app
