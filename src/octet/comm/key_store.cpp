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
  if (request.kind == Message::set) return set(rank, std::move(request));
  const auto deadline = now + std::chrono::milliseconds(request.timeout_ms);
  const bool meeting = request.kind == Message::meet;
  Waiter waiter{rank, std::move(request), deadline};
  meeting ? meet(std::move(waiter)) : wait(std::move(waiter));
}

void KeyStore::set(int rank, Frame&& request) {
  const std::string& key = request.key;
  const std::size_t bytes = key.size() + request.value.size();
  const auto before = values_.find(key);
  const bool own = before != values_.end() && before->second.owner == rank;
  const std::size_t replaced = own ? key.size() + before->second.text.size() : 0;
  demand(of(rank).keys - own < quota_.keys, ExitCode::peer, "has set more than ", quota_.keys, " keys");
  demand(of(rank).bytes - replaced + bytes <= quota_.bytes, ExitCode::peer, "has stored more than ", quota_.bytes, " bytes");
  if (before != values_.end()) forget(before);

  of(rank).keys += 1;
  of(rank).bytes += bytes;
  const auto value = values_.emplace(key, Value{std::move(request.value), rank, request.id}).first;
  const auto waiting = waiting_.extract(key);
  if (waiting.empty()) return;
  bool stays = true;
  for (const Waiter& waiter : waiting.mapped()) {
    release(waiter);
    stays = read(waiter, value->second) && stays;
  }
  if (!stays) forget(value);
}

bool KeyStore::read(const Waiter& waiter, Value& value) {
  answer_(waiter.rank, {Message::value, waiter.request.id, 0, {}, value.text});
  return value.reads == 0 || --value.reads > 0;
}

void KeyStore::forget(std::map<std::string, Value>::iterator value) {
  Holding& holding = of(value->second.owner);
  holding.keys -= 1;
  holding.bytes -= value->first.size() + value->second.text.size();
  values_.erase(value);
}

void KeyStore::hold(const Waiter& waiter) {
  Holding& holding = of(waiter.rank);
  const std::size_t bytes = waiter.request.key.size() + waiter.request.value.size();
  demand(holding.requests < quota_.requests, ExitCode::peer, "has more than ", quota_.requests, " open requests");
  demand(holding.bytes + bytes <= quota_.bytes, ExitCode::peer, "has stored more than ", quota_.bytes, " bytes");
  holding.requests += 1;
  holding.bytes += bytes;
}

void KeyStore::release(const Waiter& waiter) {
  Holding& holding = of(waiter.rank);
  holding.requests -= 1;
  holding.bytes -= waiter.request.key.size() + waiter.request.value.size();
}

void KeyStore::wait(Waiter&& waiter) {
  const auto found = values_.find(waiter.request.key);
  if (found != values_.end()) {
    if (!read(waiter, found->second)) forget(found);
  } else if (!lost_.empty()) {
    refuse(waiter, concat(quoted(waiter.request.key), " was not set: ", lost_));
  } else {
    hold(waiter);
    waiting_[waiter.request.key].push_back(std::move(waiter));
  }
}

void KeyStore::meet(Waiter&& waiter) {
  const std::string name = waiter.request.key;
  const int rank = waiter.rank;
  if (const auto open = meetings_.find(name); open != meetings_.end() && open->second.here.contains(rank)) {
    return refuse(waiter, concat("rank ", rank, " already waits at ", name));
  }
  hold(waiter);
  Meeting& meeting = meetings_[name];
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
    release(waiter);
    if (other == meeting.here.end()) {
      answer_(rank, {Message::value, waiter.request.id});
    } else {
      refuse(waiter, concat(name, ": rank ", other->first, " has ", quoted(other->second.request.value), ", rank 0 has ",
                            quoted(expected)));
    }
  }
}

void KeyStore::disperse(const std::string& name, const Meeting& meeting, std::string_view why) {
  for (const auto& [rank, waiter] : meeting.here) {
    release(waiter);
    refuse(waiter, concat(name, ": ", why));
  }
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
    for (const Waiter& waiter : waiters) {
      release(waiter);
      refuse(waiter, concat(quoted(key), " was not set: ", lost_));
    }
  }
  for (const auto& [name, meeting] : std::exchange(meetings_, {})) disperse(name, meeting, lost_);
}

void KeyStore::expire(Clock::time_point now) {
  const auto over = [now](const Waiter& waiter) { return waiter.deadline <= now; };
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    auto& waiters = entry->second;
    for (const Waiter& waiter : waiters) {
      if (!over(waiter)) continue;
      release(waiter);
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
