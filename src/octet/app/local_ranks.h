// A command of octet as the ranks of this machine.
#pragma once

#include <string>
#include <vector>

#include "octet/app/process_group.h"

namespace octet::app {

inline constexpr int kMostRanks = 1024;

// What a ProcessGroup needs to run `octet COMMAND...` as ranks 0 to ranks-1, who find each other by torchrun's variables, on a
// port of the loopback interface that nobody has at this moment. Output, note and grace are the caller's.
ProcessGroupOptions local_ranks(int ranks, const std::vector<std::string>& command);

}  // namespace octet::app
