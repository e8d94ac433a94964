#include "octet/comm/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "octet/base/require.h"

namespace octet::comm {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment ranks_of(const Variables& variables) {
  return rank_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    const RankEnvironment ranks = ranks_of(variables);
    return concat("no error: ", ranks.source, " ", ranks.rank, "/", ranks.size);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    return error.what();
  }
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  EXPECT_EQ(variables.erase(name), 1u) << name;
  return variables;
}

void expect_ranks(const RankEnvironment& ranks, const std::string& source, int rank, int size, int local_rank, int local_size) {
  EXPECT_EQ(ranks.source, source);
  EXPECT_EQ(ranks.rank, rank);
  EXPECT_EQ(ranks.size, size);
  EXPECT_EQ(ranks.local_rank, local_rank);
  EXPECT_EQ(ranks.local_size, local_size);
}

const Variables kTorchrun{
    {"RANK", "5"},           {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"},
    {"MASTER_PORT", "29501"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                       {"SLURM_JOB_NODELIST", "node[003-005,9],gpu1"},
                       {"SLURM_JOB_ID", "123456"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "2571763713"}};
const Variables kPmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSageMaker{{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}, {"SM_NUM_GPUS", "1"}};

TEST(Environment, OfNoLauncherIsOneProcess) {
  expect_ranks(ranks_of({}), "one process", 0, 1, 0, 1);
  expect_ranks(ranks_of({{"MASTER_ADDR", "node1"}, {"RANK", ""}}), "one process", 0, 1, 0, 1);
}

TEST(Environment, OfTorchrun) {
  const RankEnvironment ranks = ranks_of(kTorchrun);
  expect_ranks(ranks, "torchrun", 5, 8, 1, 4);
  EXPECT_EQ(ranks.host, "node1");
  EXPECT_EQ(ranks.port, 29501);
  EXPECT_EQ(ranks_of(without(kTorchrun, "LOCAL_WORLD_SIZE")).local_size, 2);
  EXPECT_EQ(ranks_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "8")).host, "127.0.0.1") << "all ranks are on this host";
  expect_ranks(ranks_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "torchrun", 0, 1, 0, 1);
}

TEST(Environment, OfTorchrunWhoseAgentListensAtMasterPort) {
  const Variables agent = with(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RUN_ID", "none");
  const int port = ranks_of(agent).port;
  std::set<int> ports;
  for (int store = 1; store <= 65535; ++store) {
    const int beside = ranks_of(with(agent, "MASTER_PORT", std::to_string(store))).port;
    ASSERT_NE(beside, store);
    ASSERT_GE(beside, kFirstPort);
    ASSERT_LT(beside, kFirstPort + kPorts);
    ports.insert(beside);
  }
  EXPECT_GT(ports.size(), 9000u);  // of 10,000, so runs on one host seldom choose the same port
  EXPECT_NE(ranks_of(with(agent, "TORCHELASTIC_RUN_ID", "other")).port, port);
  // All ranks must choose the same port. Variables that differ between ranks or between the agents of two machines must not
  // matter.
  EXPECT_EQ(ranks_of(with(with(agent, "RANK", "0"), "LOCAL_RANK", "0")).port, port);
  EXPECT_EQ(ranks_of(with(agent, "TORCHELASTIC_RESTART_COUNT", "1")).port, port);
  EXPECT_EQ(ranks_of(with(agent, "TORCHELASTIC_USE_AGENT_STORE", "False")).port, 29501);
  EXPECT_EQ(ranks_of(without(agent, "TORCHELASTIC_USE_AGENT_STORE")).port, 29501);
  EXPECT_EQ(error_of(without(agent, "MASTER_PORT")), "WORLD_SIZE=8 is set, but MASTER_PORT is not");
}

TEST(Environment, OfTorchrunWithMistakes) {
  EXPECT_EQ(error_of(without(kTorchrun, "WORLD_SIZE")), "RANK=5 is set, but WORLD_SIZE is not");
  EXPECT_EQ(error_of(without(kTorchrun, "RANK")), "WORLD_SIZE=8 is set, but RANK is not");
  EXPECT_EQ(error_of(without(kTorchrun, "MASTER_ADDR")), "WORLD_SIZE=8 is set, but MASTER_ADDR is not");
  EXPECT_EQ(error_of(without(kTorchrun, "MASTER_PORT")), "WORLD_SIZE=8 is set, but MASTER_PORT is not");
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "8")), "RANK=8 is not below WORLD_SIZE=8");
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "-1")), "RANK=-1 is not a whole number of at least 0");
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "5x")), "RANK=5x is not a whole number of at least 0");
  EXPECT_EQ(error_of(with(kTorchrun, "WORLD_SIZE", "99999999999")), "WORLD_SIZE=99999999999 is not a whole number of at least 0");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: there must be at least one rank");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_RANK", "4")), "torchrun reports local rank 4 on this host, but only 4 ranks on it");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")), "torchrun reports 9 ranks on this host, but WORLD_SIZE=8");
  EXPECT_EQ(error_of(with(kTorchrun, "MASTER_PORT", "65536")), "MASTER_PORT=65536 is not a port (1 to 65535)");
}

// `octet train` in a pod would be one rank where there should be one for each GPU, or a whole run of its own.
TEST(Environment, OneOfSeveralPodsIsNoRank) {
  const std::string launch = "start `octet launch --hosts auto -n auto --supervise -- train RUN.toml` in each";
  const Variables pod{{"RANK", "1"},          {"WORLD_SIZE", "16"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"},
                      {"PET_NODE_RANK", "1"}, {"PET_NNODES", "2"},  {"PET_NPROC_PER_NODE", "8"}};
  EXPECT_EQ(error_of(pod), "WORLD_SIZE=16 is set, but LOCAL_RANK is not. If RANK counts the pods of a PyTorchJob, " + launch);
  EXPECT_EQ(error_of({{"PET_NNODES", "1:4"}, {"PET_RDZV_ENDPOINT", "job-worker-0:29400"}}),
            "PET_NNODES=1:4: this is one of several pods; " + launch);
  expect_ranks(ranks_of({{"PET_NNODES", "1"}}), "one process", 0, 1, 0, 1);
  expect_ranks(ranks_of({{"PET_NNODES", "1:1"}}), "one process", 0, 1, 0, 1);
  expect_ranks(ranks_of(with(with(pod, "LOCAL_RANK", "0"), "LOCAL_WORLD_SIZE", "8")), "torchrun", 1, 16, 0, 8);
  // An Indexed Job may consist of runs that have nothing to do with each other.
  const Variables indexed{{"JOB_COMPLETION_INDEX", "1"}, {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  expect_ranks(ranks_of(indexed), "one process", 0, 1, 0, 1);
  EXPECT_EQ(ranks_of(indexed).ignored,
            "JOB_COMPLETION_INDEX=1 is ignored, because it does not tell how many pods the job has. `octet launch --hosts "
            "JOB-[0-2].SERVICE -n auto --supervise -- train RUN.toml` in each pod starts several ranks");
  expect_ranks(ranks_of({{"JOB_COMPLETION_INDEX", "0"}}), "one process", 0, 1, 0, 1);
  EXPECT_EQ(error_of({{"JOB_COMPLETION_INDEX", "1"}}), "JOB_COMPLETION_INDEX=1 is set, but KUBERNETES_SERVICE_HOST is not");
  EXPECT_EQ(error_of(with(indexed, "JOB_COMPLETION_INDEX", "x")), "JOB_COMPLETION_INDEX=x is not a whole number of at least 0");
}

TEST(Environment, OfSlurm) {
  const RankEnvironment ranks = ranks_of(kSlurm);
  expect_ranks(ranks, "Slurm", 5, 7, 1, 3);
  EXPECT_EQ(ranks.host, "node003");
  EXPECT_EQ(ranks.port, 20000 + 123456 * 7 % 10000);
  EXPECT_EQ(ranks_of(with(kSlurm, "SLURM_STEP_ID", "3")).port, ranks.port + 3);
  EXPECT_EQ(ranks_of(with(kSlurm, "SLURM_STEP_ID", "4294960003")).port, ranks.port + 3) << "more than an int holds";
  EXPECT_EQ(ranks_of(with(kSlurm, "SLURM_STEP_NUM_TASKS", "7")).port, ranks.port);
  EXPECT_EQ(ranks_of(with(kSlurm, "SLURM_STEP_NODELIST", "gpu1")).host, "gpu1");
  EXPECT_EQ(ranks_of(with(kSlurm, "MASTER_ADDR", "head")).host, "head");
  EXPECT_EQ(ranks_of(with(without(kSlurm, "SLURM_JOB_ID"), "MASTER_PORT", "4242")).port, 4242);
  EXPECT_EQ(ranks_of(without(kSlurm, "SLURM_NODEID")).local_size, 2);
  EXPECT_EQ(ranks_of(with(with(kSlurm, "SLURM_NODEID", "0"), "SLURM_STEP_TASKS_PER_NODE", "7")).host, "127.0.0.1");
  EXPECT_EQ(ranks_of(with(with(kSlurm, "SLURM_NODEID", "2"), "SLURM_STEP_TASKS_PER_NODE", "1(x2),5")).local_size, 5);
}

TEST(Environment, OfOneSlurmTask) {
  expect_ranks(ranks_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}), "Slurm", 0, 1, 0, 1);
  // The shell of an allocation, and a batch script that starts the program without srun.
  expect_ranks(ranks_of({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}), "one process", 0, 1, 0, 1);
  expect_ranks(ranks_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}}), "one process", 0, 1, 0, 1);
  EXPECT_EQ(
      ranks_of({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}).ignored,
      "SLURM_NTASKS=8 is ignored, because srun did not start this process. `srun octet train RUN.toml` starts several ranks");
  EXPECT_EQ(ranks_of({{"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "1"}}).ignored, "");
  // The same shell in a step of its own.
  expect_ranks(ranks_of({{"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_STEP_ID", "4294967290"},
                         {"SLURM_STEP_NUM_TASKS", "1"},
                         {"SLURM_JOB_ID", "1"}}),
               "one process", 0, 1, 0, 1);
}

TEST(Environment, OfSlurmWithMistakes) {
  EXPECT_EQ(error_of(without(kSlurm, "SLURM_NTASKS")), "SLURM_PROCID=5 is set, but SLURM_NTASKS is not");
  EXPECT_EQ(error_of(without(kSlurm, "SLURM_LOCALID")), "SLURM_NTASKS=7 is set, but SLURM_LOCALID is not");
  EXPECT_EQ(error_of(without(kSlurm, "SLURM_JOB_NODELIST")), "SLURM_NTASKS=7 is set, but SLURM_STEP_NODELIST is not");
  EXPECT_EQ(error_of(without(kSlurm, "SLURM_JOB_ID")), "SLURM_NTASKS=7 is set, but SLURM_JOB_ID is not");
  EXPECT_EQ(error_of(with(kSlurm, "SLURM_PROCID", "7")), "SLURM_PROCID=7 is not below SLURM_NTASKS=7");
  EXPECT_EQ(error_of(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "4(y2)")),
            "SLURM_STEP_TASKS_PER_NODE=4(y2) is not a list such as 4(x2),3");
  EXPECT_EQ(error_of(with(kSlurm, "SLURM_JOB_NODELIST", "node[003")),
            "SLURM_JOB_NODELIST=node[003 is not a list of hosts such as node[003-005,9]");
}

TEST(Environment, OneOfSeveralTasksIsNoProcessOfItsOwn) {
  const auto error = [](const std::string& name, const std::string& value) {
    return error_of({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}, {name, value}});
  };
  const std::string none = "no error: one process 0/1";
  for (const auto& [name, value, rank] :
       {std::tuple("SLURM_STEP_NUM_TASKS", "4", "SLURM_PROCID"), std::tuple("SLURM_LOCALID", "2", "SLURM_PROCID"),
        std::tuple("SLURM_NODEID", "1", "SLURM_PROCID"), std::tuple("LOCAL_RANK", "1", "RANK"),
        std::tuple("LOCAL_WORLD_SIZE", "2", "RANK"), std::tuple("OMPI_COMM_WORLD_LOCAL_RANK", "1", "OMPI_COMM_WORLD_RANK"),
        std::tuple("OMPI_COMM_WORLD_LOCAL_SIZE", "2", "OMPI_COMM_WORLD_RANK"), std::tuple("MPI_LOCALRANKID", "3", "PMI_RANK"),
        std::tuple("MPI_LOCALNRANKS", "4", "PMI_RANK"), std::tuple("PMIX_RANK", "1", "OMPI_COMM_WORLD_RANK")}) {
    EXPECT_EQ(error(name, value), concat(name, "=", value, " is set, but ", rank, " is not"));
  }
  for (const auto& [name, value] :
       {std::pair("SLURM_STEP_NUM_TASKS", "1"), std::pair("SLURM_LOCALID", "0"), std::pair("SLURM_NODEID", "0"),
        std::pair("LOCAL_RANK", "0"), std::pair("LOCAL_RANK", "-1"), std::pair("LOCAL_WORLD_SIZE", "1")}) {
    EXPECT_EQ(error(name, value), none) << name;
  }
  for (const auto& [name, value] : {std::pair("SLURM_STEP_NUM_TASKS", "4"), std::pair("SLURM_NODEID", "1")}) {
    EXPECT_EQ(error_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}, {name, value}}),
              concat(name, "=", value, " is set, but SLURM_NTASKS is not"));
  }
  // The batch script of a job, which has a rank and no number of tasks.
  expect_ranks(ranks_of({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_ID", "1"}}),
               "one process", 0, 1, 0, 1);
}

TEST(Environment, FirstHostOfALists) {
  EXPECT_EQ(first_host("node[003-005,9],gpu1"), "node003");
  EXPECT_EQ(first_host("gpu1,node[003-005,9]"), "gpu1");
  EXPECT_EQ(first_host("node[9,003-005]"), "node9");
  EXPECT_EQ(first_host("rack[1-2]node[04-08]-ib.cluster,x"), "rack1node04-ib.cluster");
  EXPECT_EQ(first_host("10.0.0.7"), "10.0.0.7");
  for (const char* list : {"", ",a", "a[", "a[1", "a]", "a[]", "a[-3]", "a[x]", "a[[1]]"}) {
    EXPECT_THROW(first_host(list), Error) << list;
  }
}

TEST(Environment, OfOpenMpi) {
  const RankEnvironment ranks = ranks_of(kOpenMpi);
  expect_ranks(ranks, "Open MPI", 3, 4, 3, 4);
  EXPECT_EQ(ranks.host, "127.0.0.1");
  EXPECT_GE(ranks.port, kFirstPort);
  EXPECT_LT(ranks.port, kFirstPort + kPorts);
  EXPECT_NE(ranks.port, ranks_of(with(kOpenMpi, "PMIX_NAMESPACE", "2571763714")).port);
  EXPECT_EQ(ranks_of(with(kOpenMpi, "MASTER_PORT", "4242")).port, 4242);
  EXPECT_EQ(ranks_of(without(kOpenMpi, "PMIX_NAMESPACE")).port, kDefaultPort);
  expect_ranks(ranks_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), "Open MPI", 0, 1, 0, 1);
}

TEST(Environment, OfOpenMpiOnSeveralHosts) {
  const Variables two_hosts = with(with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), "OMPI_COMM_WORLD_LOCAL_RANK", "1");
  EXPECT_EQ(
      error_of(two_hosts),
      "Open MPI started 4 ranks on more than one host (2 on this one) and does not report where rank 0 is. Set MASTER_ADDR to "
      "rank 0's host for every rank");
  EXPECT_EQ(ranks_of(with(two_hosts, "MASTER_ADDR", "node1")).host, "node1");
}

TEST(Environment, OfOpenMpiWithMistakes) {
  EXPECT_EQ(error_of(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
            "OMPI_COMM_WORLD_RANK=3 is set, but OMPI_COMM_WORLD_SIZE is not");
  EXPECT_EQ(error_of(without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE")),
            "OMPI_COMM_WORLD_SIZE=4 is set, but OMPI_COMM_WORLD_LOCAL_SIZE is not");
  EXPECT_EQ(error_of(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "4")), "OMPI_COMM_WORLD_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4");
}

TEST(Environment, OfPmi) {
  const RankEnvironment ranks = ranks_of(kPmi);
  expect_ranks(ranks, "PMI", 1, 2, 1, 2);
  EXPECT_EQ(ranks.host, "127.0.0.1");
  EXPECT_EQ(ranks.port, kDefaultPort);
  EXPECT_EQ(error_of(without(kPmi, "MPI_LOCALRANKID")), "PMI_SIZE=2 is set, but MPI_LOCALRANKID is not");
  EXPECT_NE(error_of(with(kPmi, "PMI_SIZE", "3")).find("MASTER_ADDR"), std::string::npos);
}

TEST(Environment, OfSageMaker) {
  const RankEnvironment ranks = ranks_of(kSageMaker);
  expect_ranks(ranks, "SageMaker", 1, 2, 0, 1);
  EXPECT_EQ(ranks.host, "algo-1");
  EXPECT_EQ(ranks.port, kDefaultPort);
  expect_ranks(ranks_of(with(kSageMaker, "SM_HOSTS", R"(["algo-2"])")), "SageMaker", 0, 1, 0, 1);
  expect_ranks(ranks_of(with(kSageMaker, "SM_NUM_GPUS", "0")), "SageMaker", 1, 2, 0, 1);
  EXPECT_EQ(error_of(with(kSageMaker, "SM_NUM_GPUS", "8")),
            "SM_NUM_GPUS=8: SageMaker starts one process for all GPUs of a host; start `octet launch --hosts auto -n auto "
            "--supervise -- train RUN.toml` instead of `octet train`");
  EXPECT_EQ(error_of(with(kSageMaker, "SM_CURRENT_HOST", "algo-3")),
            R"(SM_CURRENT_HOST=algo-3 is not in SM_HOSTS=["algo-1","algo-2"])");
  EXPECT_EQ(error_of(without(kSageMaker, "SM_CURRENT_HOST")),
            R"(SM_HOSTS=["algo-1","algo-2"] is set, but SM_CURRENT_HOST is not)");
  for (const char* hosts : {"[", "[]", "algo-1", "[1]", R"({"a":"algo-1"})"}) {
    EXPECT_EQ(error_of(with(kSageMaker, "SM_HOSTS", hosts)),
              concat("SM_HOSTS=", hosts, R"( is not a list such as ["algo-1","algo-2"])"));
  }
}

TEST(Environment, TheTokenOfSeveralRanks) {
  const Token token = Token::random();
  EXPECT_FALSE(ranks_of(kTorchrun).token.is_secret());
  EXPECT_EQ(ranks_of(with(kTorchrun, "OCTET_TOKEN", token.hex())).token.hex(), token.hex());
  EXPECT_EQ(error_of(with(kTorchrun, "OCTET_TOKEN_FILE", "/absent")),
            "OCTET_TOKEN_FILE=/absent: cannot open: No such file or directory");
  expect_ranks(ranks_of({{"OCTET_TOKEN_FILE", "/absent"}}), "one process", 0, 1, 0, 1);
}

TEST(Environment, TheOrderOfLaunchers) {
  Variables all = kTorchrun;
  for (const Variables& more : {kSlurm, kOpenMpi, kPmi, kSageMaker}) all.insert(more.begin(), more.end());
  // All variables describe the same rank, as if each launcher also set the names that the others use.
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) all[name] = "1";
  for (const char* name : {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) all[name] = "4";
  EXPECT_EQ(ranks_of(all).source, "torchrun");
  all = without(without(all, "RANK"), "WORLD_SIZE");
  EXPECT_EQ(ranks_of(all).source, "Slurm");
  EXPECT_EQ(ranks_of(without(all, "SLURM_PROCID")).source, "Open MPI");
  all = without(without(without(all, "SLURM_PROCID"), "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(ranks_of(all).source, "PMI");
  EXPECT_EQ(ranks_of(without(without(all, "PMI_RANK"), "PMI_SIZE")).source, "SageMaker");
}

TEST(Environment, OfMpirunInASlurmJobIsMpiruns) {
  Variables variables = kOpenMpi;
  variables.insert({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_NODELIST", "a[1-4]"}});
  expect_ranks(ranks_of(variables), "Open MPI", 3, 4, 3, 4);
}

}  // namespace
}  // namespace octet::comm
