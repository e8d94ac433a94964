// A command of octet as the ranks of this machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/app/process_group.h"
#include "octet/comm/token.h"

namespace octet::app {

inline constexpr int kMostRanks = 1024;

// The token of the ranks that this process starts: the one that OCTET_TOKEN_FILE or OCTET_TOKEN gives, or else a new one in a
// file, which goes with this object. The constructor throws Error{config} if the variable that is set gives no valid token.
class LocalToken {
 public:
  LocalToken();
  // "OCTET_TOKEN_FILE=PATH", or "" if the ranks inherit the token.
  std::string variable() const;

 private:
  std::optional<comm::TokenFile> file_;
};

// What a ProcessGroup needs to run `octet COMMAND...` as ranks 0 to ranks-1, who find each other by torchrun's variables, on a
// port of the loopback interface that nobody has at this moment. `token` must outlive the ranks. Output, note and grace are the
// caller's.
ProcessGroupOptions local_ranks(int ranks, const std::vector<std::string>& command, const LocalToken& token);

}  // namespace octet::app
