// The hosts of a job of which each runs one supervisor.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::app {

struct HostList {
  std::vector<std::string> hosts;  // names or addresses; "" if the scheduler does not tell
  int mine = 0;                    // the index of this host
};

// `list` is "auto", for what a scheduler's variables say (Slurm, PyTorchJob, SageMaker), or "a,b,c". Of such a list this host is
// the one that JOB_COMPLETION_INDEX counts, or that has this machine's name or an address of one of its interfaces. `get` has the
// interface of getenv. Throws Error{config} with the variable and its value.
HostList host_list(const std::string& list, const std::function<const char*(const char*)>& get);

// The hosts of a Slurm list such as "node[003-005,9],gpu1". Throws Error{config} if `list` is not such a list.
std::vector<std::string> slurm_hosts(std::string_view list);

}  // namespace octet::app
