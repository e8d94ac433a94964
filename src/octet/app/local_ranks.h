// Runs a command of octet as ranks on this machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/app/process_group.h"
#include "octet/comm/token.h"

namespace octet::app {

inline constexpr int kMostRanks = 1024;

// The token of the ranks that this process starts: the one from OCTET_TOKEN_FILE or OCTET_TOKEN, or else another one. Ranks
// read it from memory, because a file may have been deleted or be unreadable when a restart needs it. The constructors throw
// like find_token().
class LocalToken {
 public:
  // Makes a new token if none is given.
  LocalToken();
  // Uses the token in this file if OCTET_TOKEN_FILE and OCTET_TOKEN give none. The file is made if it does not exist, and
  // stays. Without a path there is no token.
  explicit LocalToken(const std::filesystem::path& file);
  // Returns TokenMemory::variable(), or "" if there is no token.
  std::string variable() const { return memory_ ? memory_->variable() : ""; }
  const comm::Token& token() const { return token_; }

 private:
  comm::Token token_;
  std::optional<comm::TokenMemory> memory_;
};

// Which ranks of a job run here, and where rank 0 is.
struct RanksHere {
  int first = 0, count = 1, all = 1;
  std::string host = "127.0.0.1";  // of rank 0
  int port = 0;
};

// Returns the options of a ProcessGroup that runs `octet COMMAND...` as these ranks, which find each other by torchrun's
// variables. `token` is LocalToken::variable(). The caller sets output, note and grace.
ProcessGroupOptions local_ranks(const RanksHere& here, const std::vector<std::string>& command, const std::string& token);

// Returns a port of this machine's address `host` that nobody uses at this moment. Throws Error{internal}.
int free_port(const std::string& host = "127.0.0.1");

}  // namespace octet::app
