// How ranks find each other and who may join: tokens, addresses and times, as a user gives them.
#include <sys/stat.h>
#include <unistd.h>

#include <future>

#include "octet/comm/socket.h"
#include "octet/comm/token.h"
#include "octet/train/version.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

// Rank `rank` of two, as a launcher on two hosts would start it.
std::string as_rank(int rank, int port, const std::string& variables = "MASTER_ADDR=127.0.0.1") {
  return concat("RANK=", rank, " LOCAL_RANK=0 WORLD_SIZE=2 MASTER_PORT=", port, " ", variables, " exec");
}

int a_free_port() { return comm::port_of(comm::listen_at("127.0.0.1", 0)); }

const std::string kTwo = "train run.toml --training.micro_batch_size=1 --training.steps=2 ";

// Both ranks at once; each with variables of its own.
std::vector<ProgramResult> both(const TinyRun& run, const std::string& options, const std::string& first,
                                const std::string& second) {
  const int port = a_free_port();
  auto other = std::async(std::launch::async, [&] { return run.run(kTwo + options, as_rank(1, port, second)); });
  const ProgramResult rank_0 = run.run(kTwo + options, as_rank(0, port, first));
  return {rank_0, other.get()};
}

std::string interface_with_an_address() {
  for (const char* name : {"eth0", "ens3", "enp0s3", "ens5"}) {
    try {
      comm::address_on(name);
      return name;
    } catch (const Error&) {
    }
  }
  return "";
}

TEST(Meeting, ATokenThatIsNamedAndNotThereEndsTheCommand) {
  const TinyRun run;
  for (const char* command : {"launch -n 2 -- train run.toml", "train run.toml"}) {
    const std::string how = std::string(command)[0] == 't' ? as_rank(0, 29500, "OCTET_TOKEN_FILE=absent MASTER_ADDR=127.0.0.1")
                                                           : "OCTET_TOKEN_FILE=absent exec";
    EXPECT_TRUE(refused(run.run(command, how), 2, "octet: OCTET_TOKEN_FILE=absent: cannot open: No such file or directory"));
  }
  EXPECT_TRUE(refused(run.run("launch -n 2 -- train run.toml", "OCTET_TOKEN=abc exec"), 2,
                      "octet: OCTET_TOKEN: a token has 64 hexadecimal digits, this one has 3 characters", comm::kMakeToken));
  EXPECT_TRUE(refused(run.run("train run.toml --comm.token=" + comm::Token::random().hex()), 2,
                      "comm.token: must be \"\" or \"none\"", "OCTET_TOKEN_FILE"));
}

TEST(Meeting, LaunchMakesATokenForItsRanksAlone) {
  const TinyRun run;
  Process process("launch -n 2 -- train run.toml --training.micro_batch_size=1 --training.steps=100000 --checkpoint.interval=0",
                  run.path(), "TMPDIR=" + run.path().string() + " exec");
  ASSERT_TRUE(process.read_to_step(1));
  std::vector<std::string> tokens;
  const std::string self = "/proc/self/";
  for (const int rank : {0, 1}) {
    std::stringstream environment;
    environment << '\0' << std::ifstream(concat("/proc/", run.pid_of_rank(rank), "/environ")).rdbuf();
    const std::string text = environment.str(), name = std::string(1, '\0') + "OCTET_TOKEN_FILE=";
    const std::size_t begin = text.find(name);
    ASSERT_NE(begin, std::string::npos);
    const std::string path = text.substr(begin + name.size(), text.find('\0', begin + 1) - begin - name.size());
    ASSERT_EQ(path.substr(0, self.size()), self);
    tokens.push_back(read_file(concat("/proc/", run.pid_of_rank(rank), "/", path.substr(self.size()))));
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_NO_THROW(comm::Token::parse(tokens[0], "the file"));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

TEST(Meeting, RanksOfOneHostNeedNoToken) {
  const TinyRun run;
  for (const std::string& variables :
       {std::string("MASTER_ADDR=localhost"), std::string("MASTER_ADDR=no.such.host.invalid LOCAL_WORLD_SIZE=2")}) {
    const int port = a_free_port();
    auto other = std::async(std::launch::async, [&] {
      return run.run(kTwo + "--run.output_dir=here",
                     concat("RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_PORT=", port, " ", variables, " exec"));
    });
    const ProgramResult first = run.run(kTwo + "--run.output_dir=here", as_rank(0, port, variables));
    EXPECT_EQ(first.code, 0) << variables << "\n" << first.err;
    EXPECT_EQ(other.get().code, 0) << variables;
    std::filesystem::remove_all(run / "here");
  }
}

TEST(Meeting, RanksOfSeveralHostsNeedAToken) {
  const TinyRun run;
  const std::string address = "198.51.100.77";  // of the range for documentation: nobody has it
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(
        refused(run.run(kTwo, as_rank(rank, 29500, "MASTER_ADDR=" + address)), 2,
                "octet: rank 0 is at 198.51.100.77, which is not a loopback address, so the ranks need a token. Make one with `",
                comm::kMakeToken));
    EXPECT_TRUE(
        refused(run.run(kTwo, as_rank(rank, 29500, "MASTER_ADDR=0.0.0.0")), 2, "MASTER_ADDR=0.0.0.0: means all addresses"));
  }
  const std::string cannot = "octet: rank 0 cannot listen at 198.51.100.77 port 29500: this machine does not have that address\n";
  const ProgramResult open = run.run(kTwo + "--comm.token=none", as_rank(0, 29500, "MASTER_ADDR=" + address));
  EXPECT_EQ(open.code, 78);
  EXPECT_NE(open.err.find("comm.token = \"none\": anybody who can reach 198.51.100.77 can join this run"), std::string::npos)
      << open.err;
  EXPECT_NE(open.err.find(cannot), std::string::npos) << open.err;
  const std::string token = "OCTET_TOKEN=" + comm::Token::random().hex();
  EXPECT_TRUE(
      refused(run.run(kTwo, as_rank(0, 29500, "MASTER_ADDR=" + address + " " + token)), 78, cannot.substr(0, cannot.size() - 1)));
}

// Some systems give a machine's own name a loopback address. LOCALHOST stands for such a name.
TEST(Meeting, AHostWhoseNameIsLoopbackNeedsAnInterface) {
  const TinyRun run;
  const std::string name = "MASTER_ADDR=LOCALHOST";
  EXPECT_TRUE(refused(run.run(kTwo, as_rank(0, 29500, name)), 2,
                      "octet: LOCALHOST, the host of rank 0, is a loopback address on this machine", "Set comm.interface"));
  for (const ProgramResult& result : both(run, "--comm.interface=lo", name, name)) EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Meeting, OnAnotherInterfaceTheRunIsTheSame) {
  const std::string interface = interface_with_an_address();
  if (interface.empty()) GTEST_SKIP() << "this machine has no interface but loopback";
  const TinyRun run;
  const std::string launch = "launch -n 2 -- " + kTwo;
  ASSERT_EQ(run.run(launch + "--run.output_dir=loopback").code, 0);
  const ProgramResult other = run.run(launch + "--run.output_dir=other --comm.interface=" + interface);
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(read_file(run / "other/model/model.safetensors"), read_file(run / "loopback/model/model.safetensors"));
  const std::string address = comm::address_on(interface);
  // Without MASTER_ADDR=127.0.0.1 the address is that of rank 0's host, and the ranks need a token.
  const std::string token = "OCTET_TOKEN=" + comm::Token::random().hex() + " MASTER_ADDR=" + address;
  for (const ProgramResult& result : both(run, "--run.output_dir=third", token, token)) EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(run / "third/model/model.safetensors"), read_file(run / "loopback/model/model.safetensors"));
}

TEST(Meeting, RanksWithDifferentTokensAreToldSo) {
  const TinyRun run;
  const auto token = [] { return "MASTER_ADDR=127.0.0.1 OCTET_TOKEN=" + comm::Token::random().hex(); };
  const std::vector<ProgramResult> results = both(run, "--comm.join_timeout_s=2", token(), token());
  EXPECT_EQ(results[0].code, 78);
  EXPECT_NE(
      results[0].err.find("octet: rank 0 cannot join: rank 1 of 2 has not joined within 2 s; a connection from 127.0.0.1 had "
                          "another token, or none\n"),
      std::string::npos)
      << results[0].err;
  EXPECT_TRUE(
      refused(results[1], 78,
              "octet: rank 1 cannot join: its token is not rank 0's; all ranks need the same OCTET_TOKEN_FILE or OCTET_TOKEN"));
}

TEST(Meeting, WaitsAsLongAsTheConfigurationSays) {
  const TinyRun run;
  EXPECT_TRUE(refused(run.run(kTwo + "--comm.join_timeout_s=0.3", as_rank(0, a_free_port())), 78,
                      "octet: rank 0 cannot join: rank 1 of 2 has not joined within 0.3 s"));
  EXPECT_TRUE(refused(run.run(kTwo + "--comm.join_timeout_s=0.3", as_rank(1, a_free_port())), 78,
                      "octet: rank 1 cannot reach rank 0 at 127.0.0.1 port ", " within 0.3 s"));
  EXPECT_TRUE(refused(run.run(kTwo + "--comm.timeout_s=0"), 2, "--comm.timeout_s=0", "above 0"));
}

// Sources differ although versions agree.
TEST(Meeting, TheCommitIsInTheRunFolderAndItsCheckpoints) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  EXPECT_EQ(json_of(read_file(run / "out/run.json"))["commit"], train::commit());
  EXPECT_EQ(json_of(read_file(last_checkpoint(run / "out") / "manifest.json"))["meta"]["commit"], train::commit());
}

// [comm] says how processes wait, not what they compute.
TEST(Meeting, OtherTimesAreNoOtherRun) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  const ProgramResult more = run.train("--training.steps=4 --comm.timeout_s=20 --comm.interface=lo");
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(more.err.find("comm."), std::string::npos) << more.err;
}

}  // namespace
}  // namespace octet::testing
