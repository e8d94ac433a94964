// A run on several hosts (support/hosts.h) that changes its number of ranks.
#include "support/bounds.h"
#include "support/supervised_hosts.h"

namespace octet::testing {
namespace {

class ElasticHosts : public SupervisedHosts {};

// Without a spare the run goes on with fewer ranks if --min-hosts allows it, and with all of them once the host is back. Three
// hosts cannot share a batch of eight, so one of them is idle. That it is ready is no reason to start again.
TEST_F(ElasticHosts, ShrinksAndGrows) {
  const std::string options =
      "--training.steps=180 --training.global_batch_size=8 --training.micro_batch_size=1 --checkpoint.interval=10 "
      "--parallel.shard=-1 ";
  const Hosts hosts(4);
  start(hosts, 1, "--min-hosts 2", options);
  ASSERT_TRUE(reaches(12));
  hosts.power_off(1);
  ASSERT_TRUE(comes_true(30, [&] { return attempts().size() == 2; }));
  end_of(1);
  ASSERT_TRUE(reaches(36));
  EXPECT_EQ(attempts().size(), 2u) << "several checkpoints later";
  hosts.plug(1);
  start_on(hosts, 1);
  for (int host = 0; host < 4; ++host) {
    const ProgramResult result = end_of(host);
    EXPECT_EQ(result.code, 0) << host << "\n" << result.err;
  }
  const std::vector<Json> all = attempts();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1]["ranks"], 2);
  EXPECT_EQ(all[1]["next"], "restarts with more hosts");
  EXPECT_EQ(all[2]["ranks"], 4);
  EXPECT_GE(all[2]["from_step"], all[1]["last_step"]) << "it saves before it grows";
  EXPECT_EQ(step(), 180);
  EXPECT_TRUE(says(node_log(0), "within roundoff, not to the bit"));
  const Json& lost = all[0]["seconds"];
  const double unnoticed_s = lost["total"].get<double>() - lost["stop"].get<double>() - lost["last_step"].get<double>();
  EXPECT_GT(unnoticed_s, 0.5) << "a host is silent for 1 s before it counts as lost";
  EXPECT_FALSE(all[1]["seconds"].contains("last_step")) << "no fault ended this attempt";

  // The same steps on the same meshes have the same bits.
  const auto change = [&](std::size_t attempt) { return all[attempt]["from_step"].get<std::int64_t>(); };
  const auto replay = [&](int ranks, const std::string& until) { make_reference(ranks, concat(options, until)); };
  replay(4, concat("--until ", change(1)));
  replay(2, concat("--until ", change(2)));
  replay(4, "");
  EXPECT_TRUE(is_reference());

  // All ranks of both meshes have the same weights when two ranks take over, and each sequence has one rank, so the losses of
  // its tokens are equal to the bit. Only their sum over ranks has another order: each order rounds a mean of T tokens by at
  // most gamma_T, in FP32 at worst.
  make_reference(4, concat(options, "--run.set_aside=true --resume none --until ", change(1) + 1));
  const auto loss = [&](const char* run) { return metrics_of(run_ / run).at(change(1) + 1)["loss"].get<double>(); };
  constexpr double kTokens = 8 * 32;
  const double bound = 2 * gamma(kTokens, kUnitRoundoffF32);
  EXPECT_NEAR(loss("out"), loss("reference"), bound * loss("reference"));
}

}  // namespace
}  // namespace octet::testing
