#include "octet/app/links.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "octet/base/json.h"
#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/checkpoint/replica_stream.h"

namespace octet::app {
namespace {

constexpr const char* kLinks = "OCTET_LINKS";
constexpr int kEchoes = 5;                             // short messages, of which the fastest answer counts
constexpr std::size_t kPiece = std::size_t{64} << 10;  // bytes in one message
constexpr int kOnTheWay = 64;                          // messages that are sent before the first one is answered
constexpr std::size_t kLinksOfHost = 2;                // in a direction, so that the best of them says something about the host

// Sends messages that ReplicaServer answers one by one, and counts the answers.
class Echo {
 public:
  Echo(comm::Connection connection, Clock::time_point deadline) : connection_(std::move(connection)), deadline_(deadline) {}

  void send(std::size_t bytes) {
    connection_.send({comm::Message::post, 0, 0, checkpoint::topic::kEcho, std::string(bytes, 'x')});
    ++sent_;
  }
  // Waits until at most `missing` answers are missing. Returns false at the deadline.
  bool wait_for_all_but(int missing) {
    while (sent_ - answered_ > missing) {
      demand(connection_.flush(), ExitCode::peer, "has closed its connection");
      pollfd polled{connection_.fd(), static_cast<short>(POLLIN | (connection_.has_output() ? POLLOUT : 0)), 0};
      if (Clock::now() >= deadline_) return false;
      ::poll(&polled, 1, comm::milliseconds_until(deadline_));
      if ((polled.revents & POLLIN) == 0) continue;
      demand(connection_.receive(), ExitCode::peer, "has closed its connection");
      while (const std::optional<comm::Frame> frame = connection_.next()) answered_ += frame->kind == comm::Message::post ? 1 : 0;
    }
    return true;
  }
  int answered() const { return answered_; }

 private:
  comm::Connection connection_;
  Clock::time_point deadline_;
  int sent_ = 0, answered_ = 0;
};

std::string speed_text(double bytes_per_s) {
  return bytes_per_s >= 1e9 ? fmt::format("{:.1f} GB/s", bytes_per_s / 1e9)
                            : fmt::format("{:.{}f} MB/s", bytes_per_s / 1e6, bytes_per_s < 1e7 ? 2 : 0);
}

// The best value of each node that has at least kLinksOfHost links, and the median of these values.
struct Bests {
  std::map<int, double> of_node;
  double median = 0;
};
Bests bests_of(const std::vector<NodeLink>& links, const auto& node_of, const auto& value_of, const auto& better) {
  std::map<int, std::vector<double>> values;
  for (const NodeLink& link : links) values[node_of(link)].push_back(value_of(link));
  Bests bests;
  std::vector<double> all;
  for (const auto& [node, of_node] : values) {
    if (of_node.size() < kLinksOfHost) continue;
    all.push_back(bests.of_node[node] = *std::min_element(of_node.begin(), of_node.end(), better));
  }
  bests.median = median(all);
  return bests;
}

}  // namespace

std::string LinkPlaces::variable() const { return concat(kLinks, "=", nlohmann::json({{"node", node}, {"to", to}}).dump()); }

std::optional<LinkPlaces> inherited_link_places() {
  const char* const value = std::getenv(kLinks);
  if (!value) return std::nullopt;
  try {
    const nlohmann::json json = parse_json(value, kLinks);
    return LinkPlaces{.node = json.at("node").get<int>(), .to = json.at("to").get<std::vector<std::string>>()};
  } catch (const std::exception& error) {
    fail(ExitCode::config, kLinks, " = ", value, ": ", error.what(),
         "; `octet launch --supervise` sets it, so unset it elsewhere");
  }
}

std::string text_of(const LinkRate& rate) {
  if (!rate.trouble.empty()) return concat(rate.to, ": not measured: ", rate.trouble);
  return fmt::format("{}: {}, answers after {:.1f} ms", rate.to, speed_text(rate.bytes_per_s), 1e3 * rate.latency_s);
}

LinkRate measure_link(const std::string& to, const comm::Token& token, const comm::Claim& claim, double limit_s) {
  const Clock::time_point begin = Clock::now(), deadline = begin + comm::seconds(limit_s);
  LinkRate rate{.to = to};
  try {
    const std::size_t colon = to.rfind(':');
    int port = 0;
    if (colon != std::string::npos) std::from_chars(to.data() + colon + 1, to.data() + to.size(), port);
    demand(port > 0, ExitCode::config, "\"", to, "\" is not HOST:PORT");
    Echo echo(comm::join({.host = to.substr(0, colon),
                          .port = port,
                          .token = token,
                          .claim = claim,
                          .timeout_s = limit_s,
                          .server = "the supervisor",
                          .me = "the gate"}),
              deadline);
    demand(seconds_since(begin) < limit_s / 2, ExitCode::peer, "connecting took so long that no time was left to measure");
    for (int i = 0; i < kEchoes; ++i) {
      const Clock::time_point sent = Clock::now();
      echo.send(1);
      if (!echo.wait_for_all_but(0)) break;
      const double took_s = seconds_since(sent);
      rate.latency_s = rate.latency_s == 0 ? took_s : std::min(rate.latency_s, took_s);
    }
    const int before = echo.answered();
    const Clock::time_point start = Clock::now();
    do {
      echo.send(kPiece);
    } while (echo.wait_for_all_but(kOnTheWay));
    rate.bytes_per_s =
        static_cast<double>(echo.answered() - before) * static_cast<double>(kPiece) / std::max(1e-3, seconds_since(start));
  } catch (const std::exception& error) {
    rate.trouble = error.what();
  }
  return rate;
}

std::vector<SlowHost> slow_hosts(const std::vector<NodeLink>& links) {
  std::map<int, std::string> slow;
  const auto add = [&](int node, const std::string& what) { slow[node] += concat(slow[node].empty() ? "" : ", and ", what); };
  const auto rate = [](const NodeLink& link) { return link.bytes_per_s; };
  const auto judge_rates = [&](const Bests& bests, const char* does) {
    for (const auto& [node, best] : bests.of_node) {
      if (best < kSlowLink * bests.median)
        add(node, fmt::format("{} at most {}, and the median host {}", does, speed_text(best), speed_text(bests.median)));
    }
  };
  judge_rates(bests_of(
                  links, [](const NodeLink& link) { return link.from; }, rate, std::greater<>()),
              "sends");
  judge_rates(bests_of(
                  links, [](const NodeLink& link) { return link.to; }, rate, std::greater<>()),
              "receives");
  // A message and its answer take both directions, so both ends of a link may count it.
  std::vector<NodeLink> answered;
  for (const NodeLink& link : links) {
    if (link.latency_s <= 0) continue;
    answered.push_back(link);
    answered.push_back({.from = link.to, .to = link.from, .latency_s = link.latency_s});
  }
  const Bests latency = bests_of(
      answered, [](const NodeLink& link) { return link.from; }, [](const NodeLink& link) { return link.latency_s; },
      std::less<>());
  for (const auto& [node, best] : latency.of_node) {
    if (best > kLateLink * latency.median && best > latency.median + kLateLinkS)
      add(node, fmt::format("answers after {:.1f} ms, and the median host after {:.1f} ms", 1e3 * best, 1e3 * latency.median));
  }
  std::vector<SlowHost> result;
  for (const auto& [node, what] : slow) result.push_back({.node = node, .what = what});
  return result;
}

}  // namespace octet::app
