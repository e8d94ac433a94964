#include "octet/comm/links.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "octet/base/process_identity.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"

namespace octet::comm {
namespace {

constexpr std::size_t kMostThreads = 16;

std::string key_of(int rank) { return concat("links/", rank); }

std::string describe(int rank, const std::string& host, const std::string& address) {
  return concat("rank ", rank, " on ", host, " (", address, ")");
}

}  // namespace

Links::Links(Rendezvous& rendezvous, const std::string& address)
    : rendezvous_(rendezvous), listener_(listen_at(address, 0, concat("rank ", rendezvous.rank()))) {
  const std::string host = ProcessIdentity::mine().host;
  self_ = describe(rendezvous.rank(), host, address);
  rendezvous_.set(key_of(rendezvous.rank()), concat(port_of(listener_), " ", address, " ", host));
}

Links::Broken Links::broken(const std::vector<int>& ranks) const {
  while (accept_from(listener_).open()) {  // those who have tried to reach this rank
  }
  std::mutex mutex;
  std::map<int, std::string> ends;
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> unknown = false;  // the rendezvous is gone, or a rank has not said where it listens: that is no broken link
  const auto try_some = [&](int) {
    for (std::size_t i = next++; i < ranks.size() && !unknown; i = next++) {
      if (ranks[i] == rendezvous_.rank()) continue;
      int port = 0;
      std::string address, host;
      try {
        std::istringstream known(rendezvous_.get(key_of(ranks[i]), kAnswerS));
        known >> port >> address >> host;
      } catch (const Error&) {
        unknown = true;
        return;
      }
      if (answers(address, port, Clock::now() + seconds(kAnswerS))) continue;
      const std::lock_guard lock(mutex);
      ends.emplace(ranks[i], describe(ranks[i], host, address));
    }
  };
  std::vector<std::thread> threads =
      start_threads("the search for broken links", static_cast<int>(std::min(kMostThreads, ranks.size())), try_some,
                    [&] { next = ranks.size(); });
  for (std::thread& thread : threads) thread.join();
  if (ends.empty() || unknown) return {};
  Broken result;
  std::string all;
  for (const auto& [rank, end] : ends) {
    result.ranks.push_back(rank);
    all += concat(all.empty() ? "" : ", ", end);
  }
  result.text = concat(self_, " and ", all, " cannot reach each other; a firewall or a switch between them?");
  return result;
}

}  // namespace octet::comm
