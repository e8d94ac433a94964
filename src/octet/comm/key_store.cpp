#include "octet/comm/key_store.h"

#include <algorithm>
#include <utility>

#include "octet/base/require.h"
#include "octet/comm/rank_list.h"

namespace octet::comm {
namespace {

// Quotes a value for a message. Values are usually a version or a hash; a longer one is cut.
std::string quoted(const std::string& value) {
  constexpr std::size_t kShown = 200;
  return "\"" + (value.size() <= kShown ? value : value.substr(0, kShown) + "...") + "\"";
}

}  // namespace

void KeyStore::serve(int rank, Frame&& request, Clock::time_point now) {
  if (request.kind == Message::set) return set(std::move(request));
  const auto deadline = now + std::chrono::milliseconds(request.timeout_ms);
  const bool meeting = request.kind == Message::meet;
  Waiter waiter{rank, std::move(request), deadline};
  meeting ? meet(std::move(waiter)) : wait(std::move(waiter));
}

void KeyStore::set(Frame&& request) {
  const std::string& value = values_[request.key] = std::move(request.value);
  const auto found = waiting_.find(request.key);
  if (found == waiting_.end()) return;
  for (const Waiter& waiter : found->second) {
    answer_(waiter.rank, {Message::value, waiter.request.id, 0, {}, waiter.request.kind == Message::get ? value : std::string()});
  }
  waiting_.erase(found);
}

void KeyStore::wait(Waiter&& waiter) {
  const auto found = values_.find(waiter.request.key);
  if (found != values_.end()) {
    const bool wanted = waiter.request.kind == Message::get;
    answer_(waiter.rank, {Message::value, waiter.request.id, 0, {}, wanted ? found->second : std::string()});
  } else if (!lost_.empty()) {
    refuse(waiter, concat(quoted(waiter.request.key), " was not set: ", lost_));
  } else {
    waiting_[waiter.request.key].push_back(std::move(waiter));
  }
}

void KeyStore::meet(Waiter&& waiter) {
  const std::string name = waiter.request.key;
  Meeting& meeting = meetings_[name];
  const int rank = waiter.rank;
  if (const auto twice = meeting.here.find(rank); twice != meeting.here.end()) {
    return refuse(waiter, concat("rank ", rank, " already waits at ", name));
  }
  meeting.here.emplace(rank, std::move(waiter));
  const bool complete = meeting.here.size() == static_cast<std::size_t>(size_);
  if (!complete && lost_.empty() && left_.empty()) return;
  const Meeting ended = std::move(meetings_.extract(name).mapped());
  if (complete) return conclude(name, ended);
  disperse(name, ended, lost_.empty() ? concat(rank_list({left_.begin(), left_.end()}), " left before") : lost_);
}

void KeyStore::conclude(const std::string& name, const Meeting& meeting) {
  const std::string& expected = meeting.here.at(0).request.value;
  const auto other = std::find_if(meeting.here.begin(), meeting.here.end(),
                                  [&](const auto& entry) { return entry.second.request.value != expected; });
  for (const auto& [rank, waiter] : meeting.here) {
    if (other == meeting.here.end()) {
      answer_(rank, {Message::value, waiter.request.id});
    } else {
      refuse(waiter, concat(name, ": rank ", other->first, " has ", quoted(other->second.request.value), ", rank 0 has ",
                            quoted(expected)));
    }
  }
}

void KeyStore::disperse(const std::string& name, const Meeting& meeting, std::string_view why) {
  for (const auto& [rank, waiter] : meeting.here) refuse(waiter, concat(name, ": ", why));
}

void KeyStore::refuse(const Waiter& waiter, const std::string& text) {
  answer_(waiter.rank, {Message::failed, waiter.request.id, 0, {}, text});
}

void KeyStore::leave(int rank) {
  left_.insert(rank);
  for (const auto& [name, meeting] : std::exchange(meetings_, {})) disperse(name, meeting, concat("rank ", rank, " left before"));
}

void KeyStore::lose(int rank, const std::string& how) {
  if (lost_.empty()) lost_ = concat("rank ", rank, " ", how);
  for (const auto& [key, waiters] : std::exchange(waiting_, {})) {
    for (const Waiter& waiter : waiters) refuse(waiter, concat(quoted(key), " was not set: ", lost_));
  }
  for (const auto& [name, meeting] : std::exchange(meetings_, {})) disperse(name, meeting, lost_);
}

void KeyStore::expire(Clock::time_point now) {
  const auto over = [now](const Waiter& waiter) { return waiter.deadline <= now; };
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    auto& waiters = entry->second;
    for (const Waiter& waiter : waiters) {
      if (over(waiter))
        refuse(waiter, concat(quoted(entry->first), " was not set within ", waiter.request.timeout_ms / 1e3, " s"));
    }
    std::erase_if(waiters, over);
    entry = waiters.empty() ? waiting_.erase(entry) : std::next(entry);
  }
  for (auto entry = meetings_.begin(); entry != meetings_.end();) {
    const auto& [name, meeting] = *entry;
    const auto first =
        std::find_if(meeting.here.begin(), meeting.here.end(), [&](const auto& here) { return over(here.second); });
    if (first == meeting.here.end()) {
      ++entry;
      continue;
    }
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (meeting.here.count(rank) == 0) missing.push_back(rank);
    }
    disperse(name, meeting,
             concat(rank_list(missing), missing.size() == 1 ? " has" : " have", " not arrived within ",
                    first->second.request.timeout_ms / 1e3, " s"));
    entry = meetings_.erase(entry);
  }
}

Clock::time_point KeyStore::next_deadline() const {
  auto next = Clock::time_point::max();
  for (const auto& [key, waiters] : waiting_) {
    for (const Waiter& waiter : waiters) next = std::min(next, waiter.deadline);
  }
  for (const auto& [name, meeting] : meetings_) {
    for (const auto& [rank, waiter] : meeting.here) next = std::min(next, waiter.deadline);
  }
  return next;
}

}  // namespace octet::comm
