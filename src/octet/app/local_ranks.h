// A command of octet as ranks on this machine.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "octet/app/process_group.h"
#include "octet/comm/token.h"

namespace octet::app {

inline constexpr int kMostRanks = 1024;

// The token of the ranks that this process starts: the one that OCTET_TOKEN_FILE or OCTET_TOKEN gives, or else one in a file. The
// constructors throw Error{config} if the variable that is set gives no valid token.
class LocalToken {
 public:
  // The file is new, and goes with this object, or with the process if a second SIGINT ends it.
  LocalToken();
  ~LocalToken();
  // The file is made if it does not exist, and stays. Without a path there is no token.
  explicit LocalToken(const std::filesystem::path& file);
  // "OCTET_TOKEN_FILE=PATH", or "" if the ranks inherit the token.
  const std::string& variable() const { return variable_; }
  const comm::Token& token() const { return token_; }

 private:
  std::unique_ptr<comm::TokenFile> file_;
  std::string variable_;
  comm::Token token_;
};

// Which ranks of a job run here, and where rank 0 is.
struct RanksHere {
  int first = 0, count = 1, all = 1;
  std::string host = "127.0.0.1";  // of rank 0
  int port = 0;
};

// What a ProcessGroup needs to run `octet COMMAND...` as these ranks, who find each other by torchrun's variables. `token` is
// LocalToken::variable(). Output, note and grace are the caller's.
ProcessGroupOptions local_ranks(const RanksHere& here, const std::vector<std::string>& command, const std::string& token);

// A port of this machine's address `host` that nobody has at this moment. Throws Error{internal}.
int free_port(const std::string& host = "127.0.0.1");

}  // namespace octet::app
