#include "octet/app/host_list.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <map>

#include "octet/base/require.h"
#include "support/folder.h"

namespace octet::app {
namespace {

using Hosts = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

constexpr const char* kNoFile = "/nowhere/resourceconfig.json";

HostList list_of(const std::string& list, const Variables& variables, const std::filesystem::path& sagemaker = kNoFile) {
  const auto get = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return host_list(list, get, sagemaker);
}

std::string error_of(const std::string& list, const Variables& variables, const std::filesystem::path& sagemaker = kNoFile) {
  try {
    list_of(list, variables, sagemaker);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    return error.what();
  }
  return "";
}

TEST(ExpandHosts, AllOfThem) {
  EXPECT_EQ(expand_hosts("node[003-005,9],gpu1"), (Hosts{"node003", "node004", "node005", "node9", "gpu1"}));
  EXPECT_EQ(expand_hosts("rack[1-2]node[08-10]-ib"),
            (Hosts{"rack1node08-ib", "rack1node09-ib", "rack1node10-ib", "rack2node08-ib", "rack2node09-ib", "rack2node10-ib"}));
  EXPECT_EQ(expand_hosts("10.0.0.7"), (Hosts{"10.0.0.7"}));
  for (const char* list : {"", ",a", "a[", "a[1", "a]", "a[]", "a[-3]", "a[3-]", "a[1-99999999999]", "a[99999999999-1]",
                           "a[99999999999]", "a[5-3],b", "a[x]", "a[[1]]", "a,,b"})
    EXPECT_THROW(expand_hosts(list), Error) << list;
}

TEST(HostList, OfSchedulers) {
  const HostList slurm =
      list_of("auto", {{"SLURM_STEP_NODELIST", "n[1-3]"}, {"SLURM_JOB_NODELIST", "n[1-9]"}, {"SLURM_NODEID", "2"}});
  EXPECT_EQ(slurm.hosts, (Hosts{"n1", "n2", "n3"}));
  EXPECT_EQ(slurm.mine, 2);
  const HostList torch = list_of("auto", {{"PET_NNODES", "1:3"}, {"PET_NODE_RANK", "1"}, {"MASTER_ADDR", "job-master-0"}});
  EXPECT_EQ(torch.hosts, (Hosts{"job-master-0", "", ""})) << "PyTorchJob names the first alone";
  EXPECT_EQ(torch.mine, 1);
  const HostList trainer =
      list_of("auto", {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "run-node-0-0.run"}});
  EXPECT_EQ(trainer.hosts, (Hosts{"run-node-0-0.run", ""})) << "Kubeflow's newer TrainJob";
  const HostList sagemaker = list_of("auto", {{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}});
  EXPECT_EQ(sagemaker.mine, 1);
  const HostList indexed = list_of("run-0.svc,run-1.svc", {{"JOB_COMPLETION_INDEX", "1"}});
  EXPECT_EQ(indexed.hosts[1], "run-1.svc");
  EXPECT_EQ(indexed.mine, 1);
  const HostList many = list_of("run-[0-11].svc", {{"JOB_COMPLETION_INDEX", "10"}});
  EXPECT_EQ(many.hosts.size(), 12u);
  EXPECT_EQ(many.hosts[10], "run-10.svc");
  EXPECT_EQ(many.mine, 10);
}

// An image without SageMaker's toolkit has no SM_HOSTS, only the file.
TEST(HostList, OfSageMakersFile) {
  const testing::TemporaryFolder folder;
  const auto file = folder.write(
      "resourceconfig.json", R"({"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"})");
  const HostList list = list_of("auto", {}, file);
  EXPECT_EQ(list.hosts, (Hosts{"algo-1", "algo-2"}));
  EXPECT_EQ(list.mine, 1);
  EXPECT_EQ(list_of("auto", {{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "a"}}, file).hosts, (Hosts{"a"}));
  testing::write_text(file, R"({"current_host": "algo-3", "hosts": ["algo-1", "algo-2"]})");
  EXPECT_EQ(error_of("auto", {}, file),
            concat("current_host=algo-3 is not in ", file.string(), R"(: hosts=["algo-1","algo-2"])"));
  for (const char* text : {"", "[]", "{}", R"({"hosts": ["a"]})", R"({"hosts": ["a"], "current_host": 1})"}) {
    testing::write_text(file, text);
    EXPECT_EQ(error_of("auto", {}, file), concat(file.string(), ": has no `hosts` and `current_host`")) << text;
  }
}

TEST(HostList, FindsThisMachine) {
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  const std::string me = name.data();
  EXPECT_EQ(list_of("other.invalid," + me, {}).mine, 1);
  EXPECT_EQ(list_of("other.invalid," + me.substr(0, me.find('.')) + ".cluster.invalid", {}).mine, 1);
  EXPECT_EQ(list_of(me.substr(0, me.find('.')) + ".rack.invalid," + me, {}).mine, 1) << "the exact name first";
}

TEST(HostList, SaysWhatIsWrong) {
  EXPECT_NE(error_of("a.invalid,b.invalid", {}).find("--hosts a.invalid,b.invalid: this machine, "), std::string::npos);
  EXPECT_NE(error_of("a.invalid,,b.invalid", {}).find("a host without a name"), std::string::npos);
  EXPECT_NE(error_of("a.invalid,a.invalid", {}).find("a.invalid is there twice"), std::string::npos);
  EXPECT_NE(error_of("auto", {}).find("no scheduler tells the hosts"), std::string::npos);
  EXPECT_NE(error_of("auto", {{"JOB_COMPLETION_INDEX", "1"}}).find("does not tell how many pods"), std::string::npos);
  EXPECT_NE(error_of("pod-[0-.svc", {}).find("pod-[0-.svc is not a list of hosts"), std::string::npos);
  EXPECT_EQ(error_of("pod-[5-3],x", {{"JOB_COMPLETION_INDEX", "0"}}),
            "pod-[5-3] is not a list of hosts: [5-3] must be a number, or a smaller and a larger one such as [2-5]");
  EXPECT_NE(error_of("auto", {{"SLURM_NODEID", "2"}}).find("SLURM_NODEID is set, but none of"), std::string::npos);
  EXPECT_EQ(error_of("auto", {{"SLURM_NODEID", "x"}, {"SLURM_JOB_NODELIST", "n1"}}),
            "SLURM_NODEID=x is not a whole number of at least 0");
  EXPECT_EQ(error_of("a,b", {{"JOB_COMPLETION_INDEX", "2"}}), "--hosts a,b: this is host 2 of 2");
  EXPECT_NE(error_of("auto", {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}}).find("MASTER_ADDR is not"), std::string::npos);
  EXPECT_NE(error_of("auto", {{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "b"}}).find("is not in SM_HOSTS"), std::string::npos);
}

}  // namespace
}  // namespace octet::app
