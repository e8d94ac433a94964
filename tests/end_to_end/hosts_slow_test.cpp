// Ranks on several hosts (support/hosts.h): the same bits as on one host, and a clear end if the network between them fails.
#include <csignal>
#include <future>
#include <thread>

#include "octet/base/rng.h"
#include "octet/comm/token.h"
#include "support/hosts.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

constexpr int kPort = 29500;

class OnHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string refusal = Hosts::refusal();
    if (!refusal.empty()) GTEST_SKIP() << refusal;
  }
  // What a launcher with one process per rank would set, for rank `rank` of `each` on every host.
  static std::string as_rank(const Hosts& hosts, int each, int rank, const std::string& token) {
    return concat("exec ", hosts.on(rank / each), "env RANK=", rank, " LOCAL_RANK=", rank % each,
                  " WORLD_SIZE=", hosts.count() * each, " LOCAL_WORLD_SIZE=", each, " MASTER_ADDR=", Hosts::address(0),
                  " MASTER_PORT=", kPort, " ", token);
  }
  // Starts all ranks. The first is rank 0.
  std::vector<std::unique_ptr<Process>> start(const Hosts& hosts, int each, const std::string& options) const {
    const std::string token = "OCTET_TOKEN=" + comm::Token::random().hex();
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < hosts.count() * each; ++rank) {
      ranks.push_back(std::make_unique<Process>("train run.toml --metrics.tensorboard=false " + options, run_.path(),
                                                as_rank(hosts, each, rank, token)));
    }
    return ranks;
  }
  static std::vector<ProgramResult> wait(std::vector<std::unique_ptr<Process>>& ranks) {
    std::vector<std::future<ProgramResult>> ends;
    for (const auto& rank : ranks) ends.push_back(std::async(std::launch::async, [&rank] { return rank->wait(); }));
    std::vector<ProgramResult> results;
    for (auto& end : ends) results.push_back(end.get());
    return results;
  }
  TinyRun run_;
};

struct MeshCase {
  const char* name;
  int hosts, each;
  const char* settings;
};
void PrintTo(const MeshCase& c, std::ostream* out) { *out << c.name; }

class MeshOnHosts : public OnHosts, public ::testing::WithParamInterface<MeshCase> {};

TEST_P(MeshOnHosts, TrainsTheRunOfOneHost) {
  const auto& [name, count, each, settings] = GetParam();
  const std::string options = concat(settings, " --training.steps=6 --checkpoint.interval=3 ");
  const ProgramResult alone = run_.run(
      concat("launch -n ", count * each, " -- train run.toml --metrics.tensorboard=false --run.output_dir=one ", options));
  ASSERT_EQ(alone.code, 0) << alone.err;
  const Hosts hosts(count);
  auto ranks = start(hosts, each, options);
  for (const ProgramResult& result : wait(ranks)) EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "one")));
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshOnHosts,
    ::testing::Values(
        MeshCase{"Replicas", 2, 1, "--training.micro_batch_size=1 --parallel.replicate=2 --precision.recipe=fp8_delayed"},
        MeshCase{"Shards", 2, 2,
                 "--training.micro_batch_size=1 --parallel.shard=4 --parallel.reshard_after_forward=true "
                 "--parallel.gradients=sharded --precision.recipe=fp8_rowwise"},
        MeshCase{"HybridShards", 2, 2, "--training.micro_batch_size=1 --parallel.replicate=2 --parallel.shard=2"},
        MeshCase{"Sequences", 2, 1, "--parallel.context=2 --precision.recipe=fp8_block"},
        MeshCase{"Layers", 2, 1, "--parallel.tensor=2 --precision.recipe=fp8_current"},
        MeshCase{"Stages", 2, 1, "--parallel.pipeline=2 --training.micro_batch_size=1"},
        MeshCase{"Experts", 2, 1,
                 "--training.micro_batch_size=1 --parallel.shard=2 --parallel.expert=2 --model.model_type=mixtral "
                 "--model.num_local_experts=4 --model.num_experts_per_tok=2"},
        MeshCase{"ThreeHosts", 3, 1, "--training.micro_batch_size=1 --training.global_batch_size=6 --parallel.shard=3"}),
    [](const auto& param) { return param.param.name; });

const std::string kLong = "--training.steps=100000 --checkpoint.interval=0 --training.micro_batch_size=1 ";

// A host whose cable is pulled out sees the others silent, and they see it silent. Nobody waits for comm.timeout_s.
TEST_F(OnHosts, ACableThatIsPulledOutEndsTheRunOnBothSides) {
  const Hosts hosts(3);
  auto ranks = start(hosts, 1, kLong + "--parallel.shard=3 --training.global_batch_size=6");
  ASSERT_TRUE(ranks[0]->read_to_step(3));
  hosts.unplug(2);
  const auto began = std::chrono::steady_clock::now();
  const std::vector<ProgramResult> results = wait(ranks);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
  EXPECT_LT(taken.count(), 30) << "10 s of silence, and the time to end";
  for (const ProgramResult& result : results) EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_TRUE(says(results[0].err, "rank 2")) << results[0].err;
}

// Rank 1 cannot send to rank 2, and rank 0 reaches both. Each end names the other, long before comm.timeout_s.
TEST_F(OnHosts, AOneWayCutBetweenTwoHostsIsNamed) {
  const Hosts hosts(3);
  hosts.cut(1, 2);
  auto ranks = start(hosts, 1, kLong + "--parallel.shard=3 --training.global_batch_size=6");
  const auto began = std::chrono::steady_clock::now();
  const std::vector<ProgramResult> results = wait(ranks);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
  EXPECT_LT(taken.count(), 40) << "two tries, the second after 12 s";
  for (const ProgramResult& result : results) EXPECT_EQ(result.code, 78) << result.err;
  const std::string one = "rank 1 on host1 (10.91.0.2)", two = "rank 2 on host2 (10.91.0.3)", link = " cannot reach each other";
  EXPECT_TRUE(says(results[1].err, concat(one, " and ", two, link)) || says(results[2].err, concat(two, " and ", one, link)))
      << results[1].err << results[2].err;
  EXPECT_TRUE(says(results[0].err, "rank 1 ended with an error") || says(results[0].err, "rank 2 ended with an error"))
      << results[0].err;
}

// The cut comes while the ranks train, and an operation of the two waits until comm.timeout_s.
TEST_F(OnHosts, ACutWhileTheyTrainIsNamed) {
  const Hosts hosts(3);
  auto ranks = start(hosts, 1, kLong + "--parallel.shard=3 --training.global_batch_size=6 --comm.timeout_s=5");
  ASSERT_TRUE(ranks[0]->read_to_step(3));
  hosts.cut(2, 1);
  std::string all;
  for (const ProgramResult& result : wait(ranks)) {
    EXPECT_EQ(result.code, 78) << result.err;
    all += result.err;
  }
  EXPECT_TRUE(says(all, "rank 1 on host1 (10.91.0.2) and rank 2 on host2 (10.91.0.3) cannot reach each other") ||
              says(all, "rank 2 on host2 (10.91.0.3) and rank 1 on host1 (10.91.0.2) cannot reach each other"))
      << all;
}

// Rank 0 of another host waits for a token before it listens anywhere.
TEST_F(OnHosts, WithoutATokenNobodyMeets) {
  const Hosts hosts(2);
  const ProgramResult rank_0 = run_.run("train run.toml --training.micro_batch_size=1", as_rank(hosts, 1, 0, ""));
  EXPECT_TRUE(refused(rank_0, 2, "rank 0 is at 10.91.0.1, which is not a loopback address, so the ranks need a token"));
}

// The supervisor's ranks are on one host, but its run can go on from what several hosts wrote.
TEST_F(OnHosts, OneHostGoesOnWhereSeveralStopped) {
  const std::string options = "--training.micro_batch_size=1 --parallel.shard=2 --checkpoint.interval=4 ";
  {
    const Hosts hosts(2);
    auto ranks = start(hosts, 1, options + "--training.steps=8");
    for (const ProgramResult& result : wait(ranks)) EXPECT_EQ(result.code, 0) << result.err;
  }
  const ProgramResult next =
      run_.run("launch -n 2 --supervise -- train run.toml --metrics.tensorboard=false --training.steps=12 " + options);
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_TRUE(says(next.err, "resuming after step 8"));
}

}  // namespace
}  // namespace octet::testing
