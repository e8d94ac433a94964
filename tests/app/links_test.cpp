#include "octet/app/links.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "octet/app/local_ranks.h"
#include "octet/base/require.h"
#include "octet/checkpoint/replica_server.h"
#include "octet/comm/socket.h"

namespace octet::app {
namespace {

constexpr double kFast = 400e6, kSlow = 2e6;

// The links of a ring in which each host measures those to the next two.
std::vector<NodeLink> ring(
    int hosts, const std::function<double(int from, int to)>& rate,
    const std::function<double(int from, int to)>& latency = [](int, int) { return 1e-4; }) {
  std::vector<NodeLink> links;
  for (int from = 0; from < hosts; ++from) {
    for (const int further : {1, 2}) {
      const int to = (from + further) % hosts;
      links.push_back({.from = from, .to = to, .bytes_per_s = rate(from, to), .latency_s = latency(from, to)});
    }
  }
  return links;
}

std::vector<int> named(const std::vector<NodeLink>& links) {
  std::vector<int> nodes;
  for (const SlowHost& slow : slow_hosts(links)) nodes.push_back(slow.node);
  return nodes;
}

TEST(Links, NameTheHostWhoseOwnLinkIsSlow) {
  for (const int hosts : {3, 4, 7}) {
    for (int slow = 0; slow < hosts; ++slow) {
      EXPECT_EQ(named(ring(hosts, [&](int from, int) { return from == slow ? kSlow : kFast; })), std::vector<int>{slow})
          << hosts << ": what it sends";
      EXPECT_EQ(named(ring(hosts, [&](int, int to) { return to == slow ? kSlow : kFast; })), std::vector<int>{slow})
          << hosts << ": what it receives";
      EXPECT_EQ(named(ring(hosts, [&](int from, int to) { return from == slow || to == slow ? kSlow : kFast; })),
                std::vector<int>{slow})
          << hosts << ": both";
      const auto late = [&](int from, int to) { return from == slow || to == slow ? 0.03 : 1e-4; };
      EXPECT_EQ(named(ring(
                    hosts, [](int, int) { return kFast; }, late)),
                std::vector<int>{slow})
          << hosts << ": late";
    }
  }
  const std::vector<SlowHost> found = slow_hosts(ring(3, [&](int from, int) { return from == 1 ? kSlow : kFast; }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "sends at most 2.00 MB/s, and the median host 400 MB/s");
}

TEST(Links, NameNobodyWithoutAReason) {
  const auto fast = [](int, int) { return kFast; };
  EXPECT_TRUE(slow_hosts({}).empty());
  EXPECT_TRUE(named(ring(4, fast)).empty());
  EXPECT_TRUE(named(ring(4, [](int from, int) { return from == 2 ? 0.4 * kFast : kFast; })).empty()) << "not much slower";
  EXPECT_TRUE(named(ring(4, [](int from, int to) { return from == 1 && to == 2 ? kSlow : kFast; })).empty())
      << "either end may be at fault";
  EXPECT_TRUE(named({{0, 1, kSlow, 0.1}, {1, 0, kFast, 1e-4}}).empty()) << "two hosts say nothing about either";
  EXPECT_TRUE(named(ring(4, fast, [](int from, int) { return from == 2 ? 1e-3 : 5e-5; })).empty()) << "an idle processor";
}

TEST(Links, AreMeasuredWithinTheirTime) {
  const comm::Token token = comm::Token::random();
  const comm::Claim claim{1'000'001, 1, "v"};
  const checkpoint::ReplicaServer server({.host = "127.0.0.1", .token = token, .version = "v", .name = "node0"});
  const LinkRate rate = measure_link(concat("127.0.0.1:", server.port()), token, claim, 0.4);
  EXPECT_EQ(rate.trouble, "");
  EXPECT_GT(rate.bytes_per_s, 0);
  EXPECT_GT(rate.latency_s, 0);

  const Descriptor silent = comm::listen_at("127.0.0.1", 0, "a host that does not answer");
  const Clock::time_point begin = Clock::now();
  const LinkRate none = measure_link(concat("127.0.0.1:", comm::port_of(silent)), token, claim, 0.4);
  EXPECT_LT(seconds_since(begin), 5) << "it waits for 0.4 s";
  EXPECT_NE(none.trouble, "");
  EXPECT_NE(measure_link("127.0.0.1", token, claim, 0.4).trouble, "");
  EXPECT_NE(measure_link(concat("127.0.0.1:", server.port()), comm::Token::random(), claim, 0.4).trouble, "");
}

}  // namespace
}  // namespace octet::app
