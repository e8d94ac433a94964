// Who this process is among the ranks of a run: read from the variables of whatever started it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace octet::comm {

struct RankEnvironment {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host; where the launcher does not say, local_size is what is known to be there
  std::string host;                    // of rank 0; may be empty with one rank
  int port = 0;                        // where rank 0 listens; 0 with one rank: any
  std::string source;                  // "torchrun", "Slurm", "Open MPI", "PMI", "SageMaker" or "one process"
};

// A run without MASTER_PORT, or under torchrun's agent, which listens there itself, uses a port of this range, by the number or
// name of its job: below those that Linux gives to outgoing connections (from 32768), so that they cannot take it first.
inline constexpr int kFirstPort = 20000, kPorts = 10000;
// Where a launcher gives its job no number: torchrun's.
inline constexpr int kDefaultPort = 29500;

// The first launcher in the order above whose variables are set. `get` is getenv or stands in for it. Variables that are
// missing, no numbers or in contradiction throw Error{config} with the variable and its value.
RankEnvironment rank_environment(const std::function<const char*(const char*)>& get);

// The first host of a Slurm list such as "node[003-005,9],gpu1". Throws Error{config}.
std::string first_host(std::string_view list);

}  // namespace octet::comm
