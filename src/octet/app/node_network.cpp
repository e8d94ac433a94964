#include "octet/app/node_network.h"

#include <poll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/signals_held.h"
#include "octet/base/start_thread.h"
#include "octet/base/visible.h"

namespace octet::app {
namespace {

constexpr double kLastWordsS = 1;
constexpr std::size_t kMostMessage = std::size_t{16} << 20;
// The last message to a node that is given up for its silence. It arrives if the node, or its network, comes back.
constexpr const char* kUnheard = "unheard";

std::string name_of(int node, const std::string& host) { return concat("node", node, " (", host, ")"); }

}  // namespace

NodeNetwork::NodeNetwork(Options options)
    : options_(std::move(options)),
      address_(options_.host),
      door_(comm::listen_at(options_.host, options_.port, name_of(options_.node, options_.host)),
            {.owner = concat("node", options_.node),
             .token = options_.token,
             .refusal = [this](const comm::Claim& claim) { return refusal(claim); },
             .enter = [this](comm::Guest&& guest) { enter(std::move(guest)); }}) {
  const SignalsHeld held;
  thread_ = start_thread("the network of supervisors", [this] { run(); });
}

NodeNetwork::~NodeNetwork() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.poke();
  thread_.join();
}

std::string NodeNetwork::refusal(const comm::Claim& claim) const {
  if (claim.size != static_cast<std::uint64_t>(options_.nodes))
    return concat("node", claim.rank, " was started with ", claim.size, " hosts, node", options_.node, " with ", options_.nodes);
  if (claim.version != options_.version)
    return concat("node", claim.rank, " is ", claim.version, ", node", options_.node, " is ", options_.version);
  if (claim.rank >= claim.size || claim.rank == static_cast<std::uint64_t>(options_.node))
    return concat("there is another node", claim.rank, " of ", options_.nodes);
  // Two that displace each other would never end. The connection of a node that has died is closed, or silent and soon gone.
  const auto link = links_.find(static_cast<int>(claim.rank));
  if (link != links_.end())
    return concat("node", claim.rank, kHereAlready, comm::address_of_peer(link->second.connection.socket()));
  return "";
}

void NodeNetwork::enter(comm::Guest&& guest) {
  const int node = static_cast<int>(guest.claim.rank);
  links_.emplace(node, Link{.connection = std::move(guest.connection), .heard = Clock::now()});
  push({.kind = NodeEvent::Kind::joined, .node = node});
}

void NodeNetwork::push(NodeEvent event) {
  events_.push_back(std::move(event));
  news_.poke();
}

std::vector<NodeEvent> NodeNetwork::take() {
  const std::lock_guard lock(mutex_);
  news_.clear();
  taken_ = Clock::now();
  std::vector<NodeEvent> result(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return result;
}

void NodeNetwork::send(int node, const std::string& what, std::string text) {
  {
    const std::lock_guard lock(mutex_);
    const auto link = links_.find(node);
    if (link == links_.end()) return;
    link->second.connection.send({comm::Message::post, 0, 0, what, std::move(text)});
  }
  wake_.poke();
}

void NodeNetwork::close(int node) {
  const std::lock_guard lock(mutex_);
  links_.erase(node);
}

void NodeNetwork::connect(int node, const std::string& host, double timeout_s) {
  comm::Connection connection = comm::join(
      {.host = host,
       .port = options_.port,
       .token = options_.token,
       .claim = {static_cast<std::uint64_t>(options_.node), static_cast<std::uint64_t>(options_.nodes), options_.version},
       .timeout_s = timeout_s,
       .server = name_of(node, host),
       .me = name_of(options_.node, options_.host)});
  {
    const std::lock_guard lock(mutex_);
    address_ = comm::address_of(connection.socket());
    links_.erase(kUplink);
    std::erase_if(events_, [](const NodeEvent& event) { return event.node == kUplink; });  // of the uplink before
    links_.emplace(kUplink, Link{.connection = std::move(connection), .heard = Clock::now()});
  }
  wake_.poke();
}

std::string NodeNetwork::address() const {
  const std::lock_guard lock(mutex_);
  return address_;
}

std::string NodeNetwork::last_refusal() const {
  const std::lock_guard lock(mutex_);
  return door_.last_refusal();
}

bool NodeNetwork::serve(int node, Link& link, bool readable, Clock::time_point now, std::string& why) {
  try {
    if (readable) {
      link.heard = now;
      const bool alive = link.connection.receive();
      while (auto frame = link.connection.next(kMostMessage)) {
        if (frame->kind != comm::Message::post) continue;
        if (frame->key == kUnheard)
          why = concat("has heard nothing from ", name_of(options_.node, options_.host), " for ", options_.silence_s, " s");
        else
          push({.kind = NodeEvent::Kind::message, .node = node, .what = frame->key, .text = frame->value});
      }
      if (!alive && why.empty()) why = "closed its connection";
    }
    if (why.empty() && !link.connection.flush()) why = "closed its connection";
    if (why.empty() && now - link.heard > comm::seconds(options_.silence_s)) {
      why = concat("has been silent for ", options_.silence_s, " s");
      link.connection.send({comm::Message::post, 0, 0, kUnheard, {}});
      link.connection.flush();
    }
  } catch (const Error& error) {
    why = printable(error.what());
  }
  return why.empty();
}

void NodeNetwork::run() {
  const auto beat = comm::seconds(std::min(0.5, options_.silence_s / 5));
  auto last_turn = Clock::now(), last_beat = last_turn;
  std::optional<Clock::time_point> ends;
  std::vector<pollfd> polled;
  std::vector<int> nodes;
  std::unique_lock lock(mutex_);
  while (!ends || Clock::now() < *ends) {
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    door_.watch(polled);
    const std::size_t first = polled.size();
    nodes.clear();
    auto wakes = ends ? *ends : last_turn + beat;
    for (const auto& [node, link] : links_) {
      nodes.push_back(node);
      wakes = std::min(wakes, link.heard + comm::seconds(options_.silence_s));
      polled.push_back({link.connection.fd(), static_cast<short>(POLLIN | (link.connection.has_output() ? POLLOUT : 0)), 0});
    }
    lock.unlock();
    ::poll(polled.data(), polled.size(), comm::milliseconds_until(wakes));
    lock.lock();
    wake_.clear();

    const auto now = Clock::now();
    // This process itself may have been suspended. What the others sent meanwhile is still to be read.
    const bool slept = now - last_turn > beat + comm::seconds(options_.silence_s / 2);
    last_turn = now;
    // A node whose main thread hangs, as on a file server, must not hold up the others.
    const bool hangs = now - taken_ > comm::seconds(options_.hang_s);
    if (now - last_beat >= beat && !hangs) {
      last_beat = now;
      for (auto& [node, link] : links_) {
        if (!link.connection.has_output()) link.connection.send({});
      }
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto found = links_.find(nodes[i]);
      // The connection may have been closed or replaced while the thread waited.
      if (found == links_.end() || found->second.connection.fd() != polled[first + i].fd) continue;
      if (slept) found->second.heard = now;
      std::string why;
      if (serve(found->first, found->second, (polled[first + i].revents & ~POLLOUT) != 0, now, why)) continue;
      push({.kind = NodeEvent::Kind::gone, .node = found->first, .text = why});
      links_.erase(found);
    }
    door_.handle(std::span(polled).subspan(1, first - 1), now);
    door_.flush(now);
    if (!stop_) continue;
    if (!ends) {
      door_.close();
      ends = now + comm::seconds(kLastWordsS);
    }
    // To close a socket before the other end has could discard what is still on its way.
    for (auto& [node, link] : links_) {
      if (!link.connection.has_output()) link.connection.shut_sending();
    }
    if (links_.empty()) return;
  }
}

}  // namespace octet::app
