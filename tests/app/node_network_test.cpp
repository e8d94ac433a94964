#include "octet/app/node_network.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cmath>
#include <limits>
#include <optional>

#include "octet/app/local_ranks.h"
#include "octet/app/node_messages.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

using Kind = NodeEvent::Kind;

// Nodes of one job, on addresses of the loopback interface.
class NodeNetworks : public ::testing::Test {
 protected:
  static std::string host(int node) { return concat("127.0.0.", node + 1); }
  NodeNetwork::Options options(int node, int nodes = 3) const {
    return {.node = node, .nodes = nodes, .host = host(node), .port = port_, .token = token_, .version = "v", .silence_s = 0.5};
  }
  // The next events, of which there must be `count` within five seconds.
  static std::vector<NodeEvent> wait_for(NodeNetwork& network, std::size_t count) {
    std::vector<NodeEvent> events;
    const Clock::time_point start = Clock::now();
    while (events.size() < count && seconds_since(start) < 5) {
      pollfd polled{.fd = network.fd(), .events = POLLIN, .revents = 0};
      ::poll(&polled, 1, 100);
      for (NodeEvent& event : network.take()) events.push_back(std::move(event));
    }
    EXPECT_EQ(events.size(), count);
    events.resize(count);
    return events;
  }
  static std::string why(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      return error.what();
    }
    return "";
  }
  const int port_ = free_port();
  const comm::Token token_ = comm::Token::random();
};

TEST_F(NodeNetworks, CarryMessagesBothWays) {
  NodeNetwork first(options(0)), second(options(1));
  second.connect(0, host(0), 2);
  second.send(kUplink, "ask", "1");
  const std::vector<NodeEvent> there = wait_for(first, 2);
  EXPECT_EQ(there[0].kind, Kind::joined);
  EXPECT_EQ(there[1].node, 1);
  EXPECT_EQ(there[1].what, "ask");
  first.send(1, "answer", std::string(1 << 20, 'x'));
  first.send(2, "nobody", "");
  const std::vector<NodeEvent> here = wait_for(second, 1);
  EXPECT_EQ(here[0].node, kUplink);
  EXPECT_EQ(here[0].text.size(), std::size_t{1} << 20);
}

// What was sent last arrives, although the sender ends at once.
TEST_F(NodeNetworks, LastWordsArrive) {
  NodeNetwork first(options(0));
  {
    NodeNetwork second(options(1));
    second.connect(0, host(0), 2);
    for (int i = 0; i < 100; ++i) second.send(kUplink, "last", std::to_string(i));
  }
  const std::vector<NodeEvent> events = wait_for(first, 102);
  EXPECT_EQ(events[100].text, "99");
  EXPECT_EQ(events[101].kind, Kind::gone);
  EXPECT_EQ(events[101].text, "closed its connection");
}

// Two supervisors with one number would displace each other without end. When the first has ended, the second gets in at once.
TEST_F(NodeNetworks, ANodeThatIsHereKeepsItsDoubleOut) {
  NodeNetwork first(options(0));
  NodeNetwork::Options again = options(1);
  std::optional<NodeNetwork> second(options(1));
  again.host = "127.0.0.9";
  NodeNetwork third(again);
  second->connect(0, host(0), 2);
  wait_for(first, 1);
  EXPECT_EQ(why([&] { third.connect(0, host(0), 2); }), "node1 (127.0.0.9) cannot join: node1 is here already, from 127.0.0.1");
  first.send(1, "old", "");
  EXPECT_EQ(wait_for(*second, 1)[0].what, "old");
  second.reset();
  EXPECT_EQ(wait_for(first, 1)[0].kind, Kind::gone);
  third.connect(0, host(0), 2);
  EXPECT_EQ(wait_for(first, 1)[0].kind, Kind::joined);
}

// What the node before has sent is not taken for words of the new one.
TEST_F(NodeNetworks, ANewUplinkBeginsWithoutTheEventsOfTheOld) {
  NodeNetwork first(options(0)), second(options(1)), third(options(2));
  third.connect(0, host(0), 2);
  wait_for(first, 1);
  first.send(2, "old", "");
  pollfd polled{.fd = third.fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&polled, 1, 5000), 1);
  third.close(kUplink);
  third.connect(1, host(1), 2);
  wait_for(second, 1);
  second.send(2, "new", "");
  EXPECT_EQ(wait_for(third, 1)[0].what, "new");
}

TEST_F(NodeNetworks, ASilentNodeIsGone) {
  NodeNetwork first(options(0));
  const comm::Connection silent =
      comm::join({.host = host(0), .port = port_, .token = token_, .claim = {2, 3, "v"}, .timeout_s = 2});
  const std::vector<NodeEvent> events = wait_for(first, 2);
  EXPECT_EQ(events[1].kind, Kind::gone);
  EXPECT_EQ(events[1].node, 2);
  EXPECT_EQ(events[1].text, "has been silent for 0.5 s");
}

// The main thread of the first node hangs. Its other thread must not pretend that all is well. The first node learns why the
// second one has left it.
TEST_F(NodeNetworks, ANodeThatHangsFallsSilent) {
  NodeNetwork::Options hanging = options(0);
  hanging.hang_s = 0.2;
  NodeNetwork first(hanging), second(options(1));
  second.connect(0, host(0), 2);
  const std::vector<NodeEvent> events = wait_for(second, 1);
  EXPECT_EQ(events[0].kind, Kind::gone);
  EXPECT_EQ(events[0].text, "has been silent for 0.5 s");
  const std::vector<NodeEvent> later = wait_for(first, 2);
  EXPECT_EQ(later[1].kind, Kind::gone);
  EXPECT_EQ(later[1].text, "has heard nothing from node0 (127.0.0.1) for 0.5 s");
}

TEST_F(NodeNetworks, RefuseWhoDoesNotBelong) {
  NodeNetwork first(options(0));
  EXPECT_EQ(first.last_refusal(), "");
  const auto refusal = [&](const NodeNetwork::Options& options) {
    NodeNetwork network(options);
    return why([&] { network.connect(0, host(0), 2); });
  };
  NodeNetwork::Options stranger = options(1);
  stranger.token = comm::Token::random();
  EXPECT_NE(refusal(stranger).find("its token is not node0's"), std::string::npos);
  NodeNetwork::Options other = options(1);
  other.version = "w";
  EXPECT_EQ(refusal(other), "node1 (127.0.0.2) cannot join: node1 is w, node0 is v");
  EXPECT_EQ(refusal(options(1, 4)), "node1 (127.0.0.2) cannot join: node1 was started with 4 hosts, node0 with 3");
  NodeNetwork::Options twin = options(0);
  twin.host = host(4);
  EXPECT_EQ(refusal(twin), "node0 (127.0.0.5) cannot join: there is another node0 of 3");
  EXPECT_EQ(first.last_refusal(), "there is another node0 of 3");
  EXPECT_NE(why([&] { NodeNetwork twice(options(0)); }).find("node0 (127.0.0.1) cannot listen at 127.0.0.1 port"),
            std::string::npos);
}

TEST(NodeMessages, AreWhatTheyWere) {
  const Order order{.attempt = 7,
                    .recorded = 6,
                    .job = "j",
                    .loaded = true,
                    .trained = true,
                    .ranks = {.first = 4, .count = 2, .all = 8, .host = "h", .port = 9},
                    .command = {"train", "a b"},
                    .config = "[run]\nname = \"é\"\n"};
  const Order back = order_of(text_of(order));
  EXPECT_EQ(back.attempt, 7);
  EXPECT_EQ(back.recorded, 6);
  EXPECT_TRUE(back.loaded);
  EXPECT_TRUE(back.trained);
  EXPECT_EQ(back.ranks.first, 4);
  EXPECT_EQ(back.command, order.command);
  EXPECT_EQ(back.config, order.config);
  const NodeEnd end = end_of(
      text_of(NodeEnd{.attempt = 3, .code = 137, .what = "rank 1 \"died\"\n", .cause = Cause::memory, .unreachable = {4, 7},
                      .all = true, .port = 5}));
  EXPECT_EQ(end.cause, Cause::memory);
  EXPECT_EQ(end.what, "rank 1 \"died\"\n");
  EXPECT_EQ(end.unreachable, (std::vector<int>{4, 7}));
  EXPECT_TRUE(end.all);
  EXPECT_THROW(end_of(text_of(NodeEnd{.unreachable = {-1}})), Error);
  EXPECT_THROW(order_of("{}"), Error);
  EXPECT_THROW(order_of(R"({"attempt":1,"job":"","first":5,"count":9,"all":8,"host":"","port":1,"command":[]})"), Error);
  EXPECT_THROW(end_of("no JSON"), Error);
}

// Clocks of machines differ, so pages travel as ages.
TEST(NodeMessages, PagesKeepTheirAges) {
  telemetry::RankPages pages(3), copy(2);
  pages.page(1).enter(telemetry::Phase::training);
  pages.page(1).finish_step(5);
  pages.page(1).saved_step = 4;
  pages.page(1).steps = 17;
  pages.page(1).origin = telemetry::Origin::memory;
  pages.page(1).snapshot_step = 3;
  pages.page(1).snapshot_ns = telemetry::monotonic_ns();
  pages.page(1).own_s = 0.375;
  pages.page(1).own_step = 5;
  pages.page(1).slow_since = 2;
  pages.page(1).slow_intervals = 7;
  pages.page(1).slower = 0.18;
  pages.page(1).loss = 3.25;
  pages.page(1).step_s = 0.5;
  pages.page(1).tokens = 4096;
  pages.page(1).saved_ns = telemetry::monotonic_ns();
  pages.page(2).finish_step(6);
  telemetry::GroupPage& group = pages.page(1).group("shard x context");
  for (int i = 0; i < 3; ++i) pages.page(1).begin(group, telemetry::Exchange::all_gather, 4096);
  group.waits = 1;
  group.members = 4'000'000'000;
  EXPECT_FALSE(read_pages(pages_text(8, pages, 1, 2), 9, copy));
  EXPECT_EQ(copy.page(1).step, 0);
  EXPECT_TRUE(read_pages(pages_text(9, pages, 1, 2), 9, copy)) << "rank 2 has no place in the copy";
  const telemetry::RankPage& page = copy.page(1);
  EXPECT_EQ(page.phase, telemetry::Phase::training);
  EXPECT_EQ(page.step, 5);
  EXPECT_EQ(page.saved_step, 4);
  EXPECT_EQ(page.steps, 17);
  EXPECT_EQ(page.origin, telemetry::Origin::memory);
  EXPECT_EQ(page.snapshot_step, 3);
  EXPECT_NEAR(static_cast<double>(page.snapshot_ns), static_cast<double>(pages.page(1).snapshot_ns), 1e9);
  EXPECT_EQ(page.own_s, 0.375);
  EXPECT_EQ(page.own_step, 5);
  EXPECT_EQ(page.slow_since, 2);
  EXPECT_EQ(page.slow_intervals, 7);
  EXPECT_EQ(page.slower, 0.18);
  EXPECT_EQ(page.loss, 3.25);
  EXPECT_EQ(page.step_s, 0.5);
  EXPECT_EQ(page.tokens, 4096);
  EXPECT_NEAR(static_cast<double>(page.saved_ns), static_cast<double>(pages.page(1).saved_ns), 1e9);
  EXPECT_NEAR(static_cast<double>(page.first_step_ns), static_cast<double>(pages.page(1).first_step_ns), 1e9);
  EXPECT_NEAR(static_cast<double>(page.last_step_ns), static_cast<double>(pages.page(1).last_step_ns), 1e9);
  EXPECT_GT(page.last_step_ns, 0);
  EXPECT_EQ(page.entered_ns[0], 0) << "never entered";
  EXPECT_EQ(page.alive_ns, 0);
  EXPECT_EQ(page.marks, pages.page(1).marks);
  EXPECT_EQ(page.groups[0].name_text(), "shard x context");
  EXPECT_EQ(page.groups[0].exchange, telemetry::Exchange::all_gather);
  EXPECT_EQ(page.groups[0].begun, 3);
  EXPECT_EQ(page.groups[0].bytes, 4096);
  EXPECT_EQ(page.groups[0].waits, 1u);
  EXPECT_EQ(page.groups[0].members, 4'000'000'000u);
  EXPECT_EQ(page.groups[1].name_text(), "");
  EXPECT_EQ(copy.page(0).step, 0);
  pages.page(1).alive_ns = telemetry::monotonic_ns() + 1'000'000'000;  // written after this moment
  EXPECT_TRUE(read_pages(pages_text(9, pages, 1, 1), 9, copy));
  EXPECT_GT(page.alive_ns, 0) << "0 means never";
  pages.page(1).loss = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(read_pages(pages_text(9, pages, 1, 1), 9, copy));
  EXPECT_TRUE(std::isnan(page.loss)) << "JSON has no infinity";
}

}  // namespace
}  // namespace octet::app
