#include "octet/app/host_list.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/process_identity.h"
#include "octet/base/require.h"
#include "octet/comm/environment.h"
#include "octet/comm/socket.h"

namespace octet::app {
namespace {

constexpr std::size_t kMostHosts = 16384;

using Get = std::function<const char*(const char*)>;

std::string value_of(const Get& get, const char* name) {
  const char* const value = get(name);
  return value ? value : "";
}

int number_of(const Get& get, const char* name) { return comm::number_in(name, value_of(get, name)); }

// Splits at commas outside of brackets.
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : list) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// Expands "node[003-005,9]" to node003, node004, node005, node9. `part` must be well formed.
void expand(const std::string& part, std::vector<std::string>& hosts) {
  const std::size_t open = part.find('[');
  if (open == part.npos) {
    demand(hosts.size() < kMostHosts, ExitCode::config, "a list of more than ", kMostHosts, " hosts");
    hosts.push_back(part);
    return;
  }
  const std::size_t close = part.find(']', open);
  for (const std::string& range : split(part.substr(open + 1, close - open - 1))) {
    const std::size_t dash = range.find('-');
    const std::string low = range.substr(0, dash), high = dash == range.npos ? low : range.substr(dash + 1);
    const bool numbers = !low.empty() && low.size() < 10 && !high.empty() && high.size() < 10;
    demand(numbers && std::stoi(low) <= std::stoi(high), ExitCode::config, part, " is not a list of hosts: [", range,
           "] must be a number, or a smaller and a larger one such as [2-5]");
    for (int i = std::stoi(low), last = std::stoi(high); i <= last && hosts.size() < kMostHosts; ++i)
      expand(concat(part.substr(0, open), fmt::format("{:0{}}", i, low.size()), part.substr(close + 1)), hosts);
  }
}

HostList from_slurm(const Get& get) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (value_of(get, name).empty()) continue;
    return {.hosts = expand_hosts(value_of(get, name)), .mine = number_of(get, "SLURM_NODEID")};
  }
  fail(ExitCode::config, "SLURM_NODEID is set, but none of SLURM_STEP_NODELIST, SLURM_JOB_NODELIST and SLURM_NODELIST is");
}

// PyTorchJob names only the first host. The others tell theirs when they join.
HostList from_pytorch_job(const Get& get) {
  const std::string nodes = value_of(get, "PET_NNODES");
  const std::string most = nodes.substr(nodes.find(':') == nodes.npos ? 0 : nodes.find(':') + 1);  // "2" or "1:4"
  const int count = number_of([&](const char*) { return most.c_str(); }, "PET_NNODES");
  const std::string first = value_of(get, value_of(get, "MASTER_ADDR").empty() ? "PET_MASTER_ADDR" : "MASTER_ADDR");
  demand(count >= 1 && count <= static_cast<int>(kMostHosts), ExitCode::config, "PET_NNODES=", nodes,
         " is not a number of hosts");
  demand(!first.empty(), ExitCode::config, "PET_NNODES=", nodes, " is set, but MASTER_ADDR is not");
  HostList list{.hosts = std::vector<std::string>(static_cast<std::size_t>(count)), .mine = number_of(get, "PET_NODE_RANK")};
  list.hosts[0] = first;
  return list;
}

HostList from_names(const std::string& all, const std::string& hosts_name, const std::string& here,
                    const std::string& here_name) {
  comm::NamedHosts named = comm::named_hosts(all, hosts_name, here, here_name);
  return {.hosts = std::move(named.hosts), .mine = named.mine};
}

HostList from_sagemaker(const Get& get, const std::filesystem::path& file) {
  if (!value_of(get, "SM_HOSTS").empty())
    return from_names(value_of(get, "SM_HOSTS"), "SM_HOSTS", value_of(get, "SM_CURRENT_HOST"), "SM_CURRENT_HOST");
  const Json json = json_of(read_file(file));
  const bool whole =
      json.is_object() && json.contains("hosts") && json.contains("current_host") && json["current_host"].is_string();
  demand(whole, ExitCode::config, file.string(), ": has no `hosts` and `current_host`");
  return from_names(json["hosts"].dump(), concat(file.string(), ": hosts"), json["current_host"].get<std::string>(),
                    "current_host");
}

// The name up to its first dot.
std::string_view short_name(std::string_view name) { return name.substr(0, name.find('.')); }

// Returns all addresses of this machine's interfaces except loopback.
std::vector<std::string> own_addresses() {
  std::vector<std::string> result;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return result;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    const bool internet = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
    const std::string text = internet ? comm::text_of(i->ifa_addr) : "";
    if (!text.empty() && text != "127.0.0.1" && text != "::1") result.push_back(text);
  }
  ::freeifaddrs(list);
  return result;
}

bool has_address_of(const std::vector<std::string>& own, const std::string& host) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, &::freeaddrinfo);
  for (const addrinfo* i = list; i; i = i->ai_next) {
    if (std::find(own.begin(), own.end(), comm::text_of(i->ai_addr)) != own.end()) return true;
  }
  return false;
}

int find_this_machine(const std::string& list, const std::vector<std::string>& hosts) {
  const std::string name = ProcessIdentity::mine().host;
  auto by_name = std::find(hosts.begin(), hosts.end(), name);
  if (by_name == hosts.end()) {
    by_name = std::find_if(hosts.begin(), hosts.end(), [&](const std::string& host) {
      return short_name(host) == short_name(name) && host.find_first_not_of("0123456789.") != host.npos;
    });
  }
  if (by_name != hosts.end()) return static_cast<int>(by_name - hosts.begin());
  const std::vector<std::string> own = own_addresses();
  const auto by_address =
      std::find_if(hosts.begin(), hosts.end(), [&](const std::string& host) { return has_address_of(own, host); });
  demand(by_address != hosts.end(), ExitCode::config, "--hosts ", list, ": this machine, ", name, " (",
         fmt::format("{}", fmt::join(own, ", ")), "), is not in the list");
  return static_cast<int>(by_address - hosts.begin());
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  for (const std::string& part : split(list)) {
    (void)comm::first_host(part);  // throws if it is not well formed
    expand(part, hosts);
  }
  return hosts;
}

HostList host_list(const std::string& text, const Get& get, const std::filesystem::path& sagemaker) {
  HostList list;
  if (text != "auto") {
    list.hosts = text.find('[') == text.npos ? split(text) : expand_hosts(text);
    for (const std::string& host : list.hosts) {
      demand(!host.empty() && std::count(list.hosts.begin(), list.hosts.end(), host) == 1, ExitCode::config, "--hosts ", text,
             ": ", host.empty() ? "a host without a name" : concat(host, " is there twice"));
    }
    const bool indexed = !value_of(get, "JOB_COMPLETION_INDEX").empty();
    list.mine = indexed ? number_of(get, "JOB_COMPLETION_INDEX") : find_this_machine(text, list.hosts);
  } else if (!value_of(get, "SLURM_NODEID").empty()) {
    list = from_slurm(get);
  } else if (!value_of(get, "PET_NNODES").empty()) {
    list = from_pytorch_job(get);
  } else if (!value_of(get, "SM_HOSTS").empty() || path_exists(sagemaker)) {
    list = from_sagemaker(get, sagemaker);
  } else {
    const bool indexed = !value_of(get, "JOB_COMPLETION_INDEX").empty();
    fail(ExitCode::config, "--hosts auto: ",
         indexed ? "JOB_COMPLETION_INDEX does not tell how many pods the job has. List their names: --hosts JOB-[0-2].SERVICE"
                 : "no scheduler tells the hosts of this job (SLURM_NODEID, PET_NNODES and SM_HOSTS are not set). "
                   "List them: --hosts node1,node2");
  }
  demand(list.mine < static_cast<int>(list.hosts.size()), ExitCode::config, "--hosts ", text, ": this is host ", list.mine,
         " of ", list.hosts.size());
  return list;
}

}  // namespace octet::app
