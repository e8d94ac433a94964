// The rank of this process in a run, as described by the environment variables of the program that started it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/comm/token.h"

namespace octet::comm {

struct RankEnvironment {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host; a lower bound of local_size if the launcher does not set it
  // Host of rank 0; may be empty if there is one rank. 127.0.0.1 if the launcher says that all ranks run on this host.
  std::string host;
  int port = 0;  // port on which rank 0 listens; 0 with one rank: any
  Token token;   // find_token(); none if there is one rank
  static constexpr const char* kOneProcess = "one process";
  std::string source;  // "torchrun", "Slurm", "Open MPI", "PMI", "SageMaker" or kOneProcess
  // With kOneProcess: which variable of a scheduler was ignored, and how to start several ranks; or "".
  std::string ignored = {};
};

// The range of ports for runs without MASTER_PORT, and for runs under torchrun's agent, which itself listens at MASTER_PORT. The
// port is derived from the job's number or name. The range lies below the ports that Linux assigns to outgoing connections (from
// 32768), so an outgoing connection cannot occupy the port first.
inline constexpr int kFirstPort = 20000, kPorts = 10000;
// The port if a launcher gives its job no number. It is torchrun's default.
inline constexpr int kDefaultPort = 29500;

// Uses the first launcher, in the order of `source` above, whose variables are set. `get` has the interface of getenv. Throws
// Error{config} with the variable and its value if a variable is missing, is not a number or contradicts another one, or as
// find_token().
RankEnvironment rank_environment(const std::function<const char*(const char*)>& get);

// Returns the number that the text of the variable `name` states. Throws Error{config} "NAME=TEXT is not a whole number of at
// least 0".
int number_in(const std::string& name, const std::string& text);

// Finds a host in a list of names. `all` is the text of a JSON list of names, and `here` is one of them. The other two
// arguments say, for messages, where both were found. Throws Error{config}.
struct NamedHosts {
  std::vector<std::string> hosts;
  int mine = 0;  // the index of `here`
};
NamedHosts named_hosts(const std::string& all, const std::string& all_name, const std::string& here,
                       const std::string& here_name);

// Returns the first host of a Slurm list such as "node[003-005,9],gpu1". Throws Error{config} if `list` is not such a list.
std::string first_host(std::string_view list);

}  // namespace octet::comm
