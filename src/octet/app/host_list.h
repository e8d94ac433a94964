// The hosts of a job. Each host runs one supervisor.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::app {

struct HostList {
  std::vector<std::string> hosts;  // names or addresses; "" if the scheduler does not tell
  int mine = 0;                    // the index of this host
};

// The file in which SageMaker names the hosts of a training job. Only images with SageMaker's own toolkit also have SM_HOSTS.
inline constexpr const char* kSageMakerHosts = "/opt/ml/input/config/resourceconfig.json";

// `list` is "auto", which asks the scheduler (Slurm, PyTorchJob, SageMaker), or names such as "a,b,c" and "pod-[0-2].svc". In
// such a list, this host is the one with the index JOB_COMPLETION_INDEX, or the one that has this machine's name or an address
// of one of its interfaces. `get` has the interface of getenv. Throws Error{config} with the variable or file and its value.
HostList host_list(const std::string& list, const std::function<const char*(const char*)>& get,
                   const std::filesystem::path& sagemaker = kSageMakerHosts);

// The hosts of a list such as "node[003-005,9],gpu1", as Slurm writes it. Throws Error{config} if `list` is not such a list.
std::vector<std::string> expand_hosts(std::string_view list);

}  // namespace octet::app
