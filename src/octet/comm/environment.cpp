#include "octet/comm/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/require.h"

namespace octet::comm {
namespace {

// Parses the whole text as a number that is at least 0.
template <class T>
std::optional<T> number_of(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// A variable that is set to a text that is not empty.
struct Variable {
  const char* name;
  std::string value;
};

class Variables {
 public:
  explicit Variables(const std::function<const char*(const char*)>& get) : get_(get) {}

  std::optional<Variable> find(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const char* value = get_(name);
      if (value && *value) return Variable{name, value};
    }
    return std::nullopt;
  }
  bool has(const char* name) const { return find({name}).has_value(); }

  // `because` names a variable that is set and has no meaning unless this one is set too.
  Variable need(std::initializer_list<const char*> names, const char* because) const {
    if (auto variable = find(names)) return *std::move(variable);
    const auto set = find({because});
    fail(ExitCode::config, because, "=", set ? set->value : "", " is set, but ", *names.begin(), " is not");
  }
  int need_number(std::initializer_list<const char*> names, const char* because) const {
    const Variable variable = need(names, because);
    return number_in(variable.name, variable.value);
  }

  std::optional<int> find_number(std::initializer_list<const char*> names) const {
    const auto variable = find(names);
    return variable ? std::optional(number_in(variable->name, variable->value)) : std::nullopt;
  }

  std::optional<int> find_port() const {
    const auto variable = find({"MASTER_PORT"});
    if (!variable) return std::nullopt;
    const int port = number_in(variable->name, variable->value);
    demand(port >= 1 && port <= 65535, ExitCode::config, "MASTER_PORT=", variable->value, " is not a port (1 to 65535)");
    return port;
  }

 private:
  const std::function<const char*(const char*)>& get_;
};

// Checks that the four numbers are consistent.
RankEnvironment checked(RankEnvironment ranks, const char* rank_name, const char* size_name) {
  demand(ranks.size >= 1, ExitCode::config, size_name, "=", ranks.size, ": there must be at least one rank");
  demand(ranks.rank < ranks.size, ExitCode::config, rank_name, "=", ranks.rank, " is not below ", size_name, "=", ranks.size);
  demand(ranks.local_size >= 1 && ranks.local_size <= ranks.size, ExitCode::config, ranks.source, " reports ", ranks.local_size,
         " ranks on this host, but ", size_name, "=", ranks.size);
  demand(ranks.local_rank < ranks.local_size, ExitCode::config, ranks.source, " reports local rank ", ranks.local_rank,
         " on this host, but only ", ranks.local_size, " ranks on it");
  return ranks;
}

constexpr const char* kThisHost = "127.0.0.1";
constexpr const char* kStartLaunch = "start `octet launch --hosts auto -n auto --supervise -- train RUN.toml`";

int port_of_job(std::uint64_t number) { return kFirstPort + static_cast<int>(number % static_cast<std::uint64_t>(kPorts)); }

// FNV-1a. Unlike std::hash it gives the same value on every rank, whatever its standard library.
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return value;
}

// Parses a list such as "4(x2),3": the numbers of tasks on the first, second and third host.
std::optional<int> tasks_on_host(const Variable& variable, int host) {
  std::string_view rest = variable.value;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::size_t open = part.find("(x");
    const auto tasks = number_of<int>(part.substr(0, open));
    const auto hosts = open == part.npos ? 1 : number_of<int>(part.substr(open + 2, part.size() - open - 3));
    demand(tasks && hosts, ExitCode::config, variable.name, "=", variable.value, " is not a list such as 4(x2),3");
    if (host < *hosts) return tasks;
    host -= *hosts;
  }
  return std::nullopt;
}

// torchrun's agent may listen at MASTER_PORT with a store of its own while its ranks run, so rank 0 needs another port. The port
// does not depend on TORCHELASTIC_RESTART_COUNT: each machine's agent has its own count, and does not increment it when it
// restarts its ranks because another machine has come back.
int port_beside_the_agents(const Variables& variables, int agents) {
  const auto run = variables.find({"TORCHELASTIC_RUN_ID"});
  const std::uint64_t number = hash(concat(run ? run->value : "", ":", agents));
  const int port = port_of_job(number);
  return port == agents ? port_of_job(number + 1) : port;
}

RankEnvironment from_torchrun(const Variables& variables) {
  RankEnvironment ranks{.source = "torchrun"};
  ranks.rank = variables.need_number({"RANK"}, "WORLD_SIZE");
  ranks.size = variables.need_number({"WORLD_SIZE"}, "RANK");
  const auto local_rank = variables.find_number({"LOCAL_RANK"});
  if (ranks.size > 1) {
    demand(local_rank.has_value(), ExitCode::config, "WORLD_SIZE=", ranks.size,
           " is set, but LOCAL_RANK is not. If RANK counts the pods of a PyTorchJob, ", kStartLaunch, " in each");
    variables.need({"MASTER_ADDR"}, "WORLD_SIZE");
    variables.need({"MASTER_PORT"}, "WORLD_SIZE");
  }
  ranks.local_rank = local_rank.value_or(0);
  const auto local_size = variables.find_number({"LOCAL_WORLD_SIZE"});
  ranks.local_size = local_size.value_or(ranks.local_rank + 1);
  if (const auto host = variables.find({"MASTER_ADDR"})) ranks.host = host->value;
  if (local_size == ranks.size) ranks.host = kThisHost;
  ranks.port = variables.find_port().value_or(0);
  const auto agent_listens = variables.find({"TORCHELASTIC_USE_AGENT_STORE"});
  if (ranks.port > 0 && agent_listens && agent_listens->value == "True")
    ranks.port = port_beside_the_agents(variables, ranks.port);
  return checked(ranks, "RANK", "WORLD_SIZE");
}

bool started_by_slurm(const Variables& variables) {
  const auto rank = variables.find({"SLURM_PROCID"}), size = variables.find({"SLURM_NTASKS"});
  // The shell of an allocation has only SLURM_NTASKS. A batch script outside srun may have only SLURM_PROCID=0.
  if (!rank || (!size && rank->value == "0")) return false;
  // Since Slurm 20.11 that shell may run in a step of its own, of one task in an allocation for more (use_interactive_step).
  if (const auto tasks = variables.find({"SLURM_STEP_NUM_TASKS"}); tasks && tasks->value == "1" && size && size->value != "1")
    return false;
  // Under mpirun in a Slurm job, ranks inherit the Slurm variables of
  // the batch script or of mpirun's daemons. Those are not their own.
  const auto mpi_rank = variables.find({"OMPI_COMM_WORLD_RANK", "PMI_RANK"});
  const auto mpi_size = variables.find({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  const bool mpirun = mpi_rank && mpi_size && (mpi_rank->value != rank->value || !size || mpi_size->value != size->value);
  return !mpirun;
}

RankEnvironment from_slurm(const Variables& variables) {
  RankEnvironment ranks{.source = "Slurm"};
  ranks.rank = variables.need_number({"SLURM_PROCID"}, "SLURM_NTASKS");
  ranks.size = variables.need_number({"SLURM_NTASKS"}, "SLURM_PROCID");
  ranks.local_rank = ranks.size > 1 ? variables.need_number({"SLURM_LOCALID"}, "SLURM_NTASKS")
                                    : variables.find_number({"SLURM_LOCALID"}).value_or(0);
  ranks.local_size = ranks.local_rank + 1;
  const auto tasks = variables.find({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto node = variables.find_number({"SLURM_NODEID"});
  const auto local_size = tasks && node ? tasks_on_host(*tasks, *node) : std::nullopt;
  ranks.local_size = local_size.value_or(ranks.local_size);
  if (ranks.size == 1) return checked(ranks, "SLURM_PROCID", "SLURM_NTASKS");

  if (local_size == ranks.size) {
    ranks.host = kThisHost;
  } else if (const auto host = variables.find({"MASTER_ADDR"})) {
    ranks.host = host->value;
  } else {
    // Rank 0 runs on the first host of the job step, which may use only some of the job's hosts.
    const Variable list = variables.need({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}, "SLURM_NTASKS");
    try {
      ranks.host = first_host(list.value);
    } catch (const Error& error) {
      fail(ExitCode::config, list.name, "=", error.what());
    }
  }
  if (const auto port = variables.find_port()) {
    ranks.port = *port;
  } else {
    const Variable job = variables.need({"SLURM_JOB_ID", "SLURM_JOBID"}, "SLURM_NTASKS");
    const auto number = number_of<std::int64_t>(job.value);
    demand(number.has_value(), ExitCode::config, job.name, "=", job.value, " is not a whole number of at least 0");
    // Steps of one job may run at the same time on one host. The factor
    // 7 separates the first few steps from those of the next job.
    const auto step = variables.find({"SLURM_STEP_ID"});
    const auto step_number = step ? number_of<std::int64_t>(step->value) : 0;  // some steps have numbers beyond an int
    demand(step_number.has_value(), ExitCode::config, "SLURM_STEP_ID=", step ? step->value : "",
           " is not a whole number of at least 0");
    ranks.port = port_of_job(static_cast<std::uint64_t>(*number) * 7 + static_cast<std::uint64_t>(*step_number));
  }
  return checked(ranks, "SLURM_PROCID", "SLURM_NTASKS");
}

// MPI launchers do not tell ranks where rank 0 runs. It is known only if all ranks run on one host.
void find_mpi_master(const Variables& variables, std::initializer_list<const char*> job, RankEnvironment& ranks) {
  if (ranks.size == 1) return;
  if (ranks.local_size == ranks.size) {
    ranks.host = kThisHost;
  } else {
    const auto host = variables.find({"MASTER_ADDR"});
    demand(host.has_value(), ExitCode::config, ranks.source, " started ", ranks.size, " ranks on more than one host (",
           ranks.local_size,
           " on this one) and does not report where rank 0 is. Set MASTER_ADDR to rank 0's host for every rank");
    ranks.host = host->value;
  }
  const auto name = variables.find(job);
  ranks.port = variables.find_port().value_or(name ? port_of_job(hash(name->value)) : kDefaultPort);
}

RankEnvironment from_open_mpi(const Variables& variables) {
  RankEnvironment ranks{.source = "Open MPI"};
  ranks.rank = variables.need_number({"OMPI_COMM_WORLD_RANK"}, "OMPI_COMM_WORLD_SIZE");
  ranks.size = variables.need_number({"OMPI_COMM_WORLD_SIZE"}, "OMPI_COMM_WORLD_RANK");
  if (ranks.size > 1) {
    ranks.local_rank = variables.need_number({"OMPI_COMM_WORLD_LOCAL_RANK"}, "OMPI_COMM_WORLD_SIZE");
    ranks.local_size = variables.need_number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, "OMPI_COMM_WORLD_SIZE");
  }
  checked(ranks, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  find_mpi_master(variables, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}, ranks);
  return ranks;
}

RankEnvironment from_pmi(const Variables& variables) {
  RankEnvironment ranks{.source = "PMI"};
  ranks.rank = variables.need_number({"PMI_RANK"}, "PMI_SIZE");
  ranks.size = variables.need_number({"PMI_SIZE"}, "PMI_RANK");
  if (ranks.size > 1) {
    ranks.local_rank = variables.need_number({"MPI_LOCALRANKID"}, "PMI_SIZE");
    ranks.local_size = variables.find_number({"MPI_LOCALNRANKS"}).value_or(ranks.local_rank + 1);
  }
  checked(ranks, "PMI_RANK", "PMI_SIZE");
  find_mpi_master(variables, {"PMI_JOBID", "PMI_PORT"}, ranks);
  return ranks;
}

// SageMaker starts one process per host, which is a rank if the host has at most one GPU. torchrun or octet's own launcher starts
// further ranks and sets torchrun's variables.
RankEnvironment from_sagemaker(const Variables& variables) {
  RankEnvironment ranks{.source = "SageMaker"};
  const Variable list = variables.need({"SM_HOSTS"}, "SM_CURRENT_HOST");
  const Variable here = variables.need({"SM_CURRENT_HOST"}, "SM_HOSTS");
  const auto [hosts, mine] = named_hosts(list.value, list.name, here.value, here.name);
  ranks.rank = mine;
  ranks.size = static_cast<int>(hosts.size());
  if (ranks.size == 1) return ranks;
  const int gpus = variables.find_number({"SM_NUM_GPUS"}).value_or(0);
  demand(gpus <= 1, ExitCode::config, "SM_NUM_GPUS=", gpus, ": SageMaker starts one process for all GPUs of a host; ",
         kStartLaunch, " instead of `octet train`");
  const auto master = variables.find({"MASTER_ADDR"});
  ranks.host = master ? master->value : hosts.front();
  ranks.port = variables.find_port().value_or(kDefaultPort);
  return ranks;
}

// A PyTorchJob whose pods come and go counts them in PET_NNODES ("1:4") and gives them no RANK.
void refuse_one_of_several_pods(const Variables& variables) {
  const auto pods = variables.find({"PET_NNODES"});
  if (!pods) return;
  const std::string most = pods->value.substr(pods->value.find(':') + 1);
  demand(most == "1", ExitCode::config, "PET_NNODES=", pods->value, ": this is one of several pods; ", kStartLaunch, " in each");
}

// A task of Slurm, Open MPI or torchrun whose rank, or the number of whose ranks, got lost, or a pod of an Indexed Job without
// the variables of every pod: for example in a container that passes on only some variables. The least values are those that one
// process does not have.
void refuse_one_of_several_tasks(const Variables& variables) {
  struct Sign {
    const char* name;
    int least;
    const char* needs;
  };
  for (const Sign& sign : {Sign{"LOCAL_RANK", 1, "RANK"}, Sign{"LOCAL_WORLD_SIZE", 2, "RANK"},
                           Sign{"SLURM_STEP_NUM_TASKS", 2, "SLURM_PROCID"}, Sign{"SLURM_STEP_NUM_TASKS", 2, "SLURM_NTASKS"},
                           Sign{"SLURM_NODEID", 1, "SLURM_NTASKS"}, Sign{"SLURM_LOCALID", 1, "SLURM_PROCID"},
                           Sign{"SLURM_NODEID", 1, "SLURM_PROCID"}, Sign{"OMPI_COMM_WORLD_LOCAL_RANK", 1, "OMPI_COMM_WORLD_RANK"},
                           Sign{"OMPI_COMM_WORLD_LOCAL_SIZE", 2, "OMPI_COMM_WORLD_RANK"}, Sign{"MPI_LOCALRANKID", 1, "PMI_RANK"},
                           Sign{"MPI_LOCALNRANKS", 2, "PMI_RANK"}, Sign{"PMIX_RANK", 1, "OMPI_COMM_WORLD_RANK"},
                           Sign{"JOB_COMPLETION_INDEX", 1, "KUBERNETES_SERVICE_HOST"}}) {
    const auto found = variables.find({sign.name});
    if (found && number_of<int>(found->value).value_or(0) >= sign.least) variables.need({sign.needs}, sign.name);
  }
}

// Says which variables of a scheduler one process does not use, or returns "".
std::string ignored_variables(const Variables& variables) {
  const auto index = variables.find_number({"JOB_COMPLETION_INDEX"});
  if (index) {
    return concat("JOB_COMPLETION_INDEX=", *index,
                  " is ignored, because it does not tell how many pods the job has. `octet launch --hosts JOB-[0-2].SERVICE -n "
                  "auto --supervise -- train RUN.toml` in each pod starts several ranks");
  }
  const auto tasks = variables.find_number({"SLURM_NTASKS"});
  if (tasks.value_or(1) == 1) return "";
  return concat("SLURM_NTASKS=", *tasks,
                " is ignored, because srun did not start this process. `srun octet train RUN.toml` starts several ranks");
}

RankEnvironment from_launcher(const Variables& variables) {
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return from_torchrun(variables);
  if (started_by_slurm(variables)) return from_slurm(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE")) return from_open_mpi(variables);
  if (variables.has("PMI_RANK") || variables.has("PMI_SIZE")) return from_pmi(variables);
  if (variables.has("SM_HOSTS") || variables.has("SM_CURRENT_HOST")) return from_sagemaker(variables);
  refuse_one_of_several_pods(variables);
  refuse_one_of_several_tasks(variables);
  return {.source = RankEnvironment::kOneProcess, .ignored = ignored_variables(variables)};
}

}  // namespace

int number_in(const std::string& name, const std::string& text) {
  const auto value = number_of<int>(text);
  demand(value.has_value(), ExitCode::config, name, "=", text, " is not a whole number of at least 0");
  return *value;
}

NamedHosts named_hosts(const std::string& all, const std::string& all_name, const std::string& here,
                       const std::string& here_name) {
  const Json json = json_of(all);
  const auto is_text = [](const Json& host) { return host.is_string(); };
  demand(json.is_array() && !json.empty() && std::all_of(json.begin(), json.end(), is_text), ExitCode::config, all_name, "=", all,
         R"( is not a list such as ["algo-1","algo-2"])");
  NamedHosts named{.hosts = json.get<std::vector<std::string>>()};
  const auto found = std::find(named.hosts.begin(), named.hosts.end(), here);
  demand(found != named.hosts.end(), ExitCode::config, here_name, "=", here, " is not in ", all_name, "=", all);
  named.mine = static_cast<int>(found - named.hosts.begin());
  return named;
}

std::string first_host(std::string_view list) {
  std::string host;
  bool sound = true, inside = false, skipping = false;  // inside: in brackets; skipping: past the first number in the brackets
  char last = 0;
  for (const char c : list) {
    const bool digit = c >= '0' && c <= '9';
    if (inside && c == ']') {
      sound = sound && last != '[';
      inside = skipping = false;
    } else if (inside) {
      sound = sound && (digit || (last != '[' && (c == '-' || c == ',')));
      skipping = skipping || !digit;
      if (!skipping) host += c;
    } else if (c == '[') {
      inside = true;
    } else if (c == ',') {
      break;
    } else {
      host += c;
    }
    last = c;
  }
  demand(sound && !inside && !host.empty() && host.find(']') == host.npos, ExitCode::config, list,
         " is not a list of hosts such as node[003-005,9]");
  return host;
}

RankEnvironment rank_environment(const std::function<const char*(const char*)>& get) {
  RankEnvironment ranks = from_launcher(Variables(get));
  if (ranks.size > 1) ranks.token = find_token(get);
  return ranks;
}

}  // namespace octet::comm
