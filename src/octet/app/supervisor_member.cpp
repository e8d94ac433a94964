// A supervisor that does not coordinate: how it finds the node that does, and what it does for it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "octet/app/supervisor.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

constexpr double kConnectS = 1;      // for a node that should be there
constexpr double kAnswerS = 15;      // a node that searches itself answers when it has found out
constexpr double kPagesS = 0.5;      // between two reports of what the ranks do
constexpr double kShortAnswerS = 1;  // for a node that this one asks in passing
constexpr double kRetryS = 0.25;     // between two rounds of a search
constexpr double kAbsentS = 3;       // seconds for which a search skips a node that could not be reached while ranks ended
constexpr double kLateKillS = 0.1;   // how much later than --grace a node may kill its ranks because it was asking others
constexpr int kLeft = static_cast<int>(ExitCode::preempted);
constexpr const char* kOfAnOldJob = " belongs to a job that is over: ";

}  // namespace

void Supervisor::watch_lock(bool late) {
  if (record(read_trouble_, [&] { lock_watch_.look(); })) return;
  lock_watch_.restart();
  demand(!late, ExitCode::data, read_trouble_.text);
}

Supervisor::Role Supervisor::search() {
  std::optional<NodeAddress> lost = std::exchange(coordinator_, std::nullopt);
  const Clock::time_point start = Clock::now();
  std::string trouble;
  lock_watch_.restart();
  for (;;) {
    std::optional<telemetry::Attempt> newest, other_job;
    // Without attempts/ nobody knows whether another node coordinates, so nobody begins.
    const bool readable = record(read_trouble_, [&] {
      for (telemetry::Attempt& attempt : attempts_.read()) {
        if (is_of_later_job(attempt)) {
          other_job = std::move(attempt);
        } else if (!attempt.coordinator_host.empty() && (!took_part_ || attempt.job == job_) &&
                   (!newest || attempt.number > newest->number)) {
          newest = std::move(attempt);
        }
      }
    });
    demand(!other_job, ExitCode::peer, name_of(me()), kOfAnOldJob, "attempt ", other_job ? other_job->number : 0, " in ",
           (options_.run_folder / "attempts").string(),
           " belongs to a later job. Start that job's command again on this host "
           "to join it");
    if (newest && newest->job == job_ && newest->number >= recorded_attempt_ && !telemetry::goes_on(*newest)) {
      over_code_ = telemetry::code_of_run(*newest);
      ranks_.say(concat(attempts_.path_of(newest->number).string(), " says that the run has ended with code ", over_code_,
                        newest->next.empty() ? "" : ": " + newest->next));
      return Role::over;
    }
    // The coordinator of the newest attempt first, then the lower nodes, and the higher ones if one of them may coordinate.
    std::optional<NodeAddress> before;
    const bool had_one = !fresh_ || (newest && telemetry::goes_on(*newest));
    if (newest && telemetry::goes_on(*newest) && newest->coordinator < nodes())
      before = {newest->coordinator, newest->coordinator_host};
    std::vector<NodeAddress> addresses = addresses_to_ask(before, had_one ? nodes() : me());
    // find_absent() has just asked these nodes.
    const bool still_absent = seconds_since(absent_at_) < kAbsentS;
    for (const int node : std::exchange(absent_, {}))
      std::erase_if(addresses, [&](const NodeAddress& address) { return still_absent && address.node == node; });
    bool lower_lives = false, elsewhere = false;
    if (!readable) {
      demand(seconds_since(start) < options_.join_timeout_s, ExitCode::data, read_trouble_.text);
      addresses.clear();
      elsewhere = true;
    }
    for (const NodeAddress& address : addresses) {
      if (ranks_.asked()) return Role::asked;
      if (address.node > me() && lower_lives) break;
      std::optional<NodeAddress> other;
      Answer answer = ask(address, other, trouble, kAnswerS);
      if (answer == Answer::another && other->node != me()) {
        answer = ask(*std::exchange(other, std::nullopt), other, trouble, kAnswerS);
        elsewhere = elsewhere || answer != Answer::welcome;
      } else if (answer == Answer::another && fresh_) {
        elsewhere = true;  // it has not noticed yet that this node, which coordinated, has been started again
      }
      elsewhere = elsewhere || answer == Answer::taken;
      if (answer == Answer::welcome) return Role::member;
      lower_lives = lower_lives || (address.node < me() && answer == Answer::searching);
    }
    // This node has been started again, and heard of the job from others.
    if (!lost && !fresh_ && !took_part_ && newest && newest->job == job_) {
      lost = {newest->coordinator, newest->coordinator_host};
      lost_how_ = newest->coordinator == me() ? "has been started again" : "is not there";
    }
    const double waited_s = seconds_since(start);
    const bool late = waited_s >= options_.join_timeout_s;
    watch_lock(late);
    const bool is_silent = lock_watch_.still_s() >= LockWatch::kSilenceS;
    // Another side of a broken network has begun an attempt: this one must not. But if the coordinator that this node has lost
    // began the attempt, it may be dead, and nobody may have heard of the attempt.
    const bool unheard = !fresh_ && newest && newest->job == job_ && is_of_another(*newest);
    const bool of_lost = unheard && lost && newest->coordinator == lost->node;
    if (unheard && !(of_lost && late && is_silent)) elsewhere = true;
    const bool decided = !of_lost || is_silent || lock_watch_.grows();
    demand(!elsewhere || !late || !decided, ExitCode::peer, name_of(me()),
           " cannot reach the node that coordinates the run: ", trouble);
    // A lower node that wakes up at this moment may coordinate, too. Once the job has begun, only one of the two can create the
    // file of the next attempt, and the other one yields.
    const bool yields = lower_lives && (fresh_ || !late);
    if (!elsewhere && !yields && (!fresh_ || me() == 0 || late)) {
      coordinator_ = lost;
      // It may have begun an attempt that nobody heard of. That one is over too.
      if (lost && newest && newest->job == job_ && newest->coordinator == lost->node)
        recorded_attempt_ = std::max(recorded_attempt_, newest->number);
      newest_attempt_ = std::max(newest_attempt_, recorded_attempt_);
      return Role::coordinator;
    }
    for (const NodeEvent& event : turn(kRetryS)) hold(event);
    if (ranks_.asked()) return Role::asked;
  }
}

std::vector<NodeAddress> Supervisor::addresses_to_ask(const std::optional<NodeAddress>& first, int below) const {
  std::vector<NodeAddress> addresses;
  if (first && first->node != me()) addresses.push_back(*first);
  for (int node = 0; node < below; ++node) {
    const std::string& host = options_.hosts.hosts[static_cast<std::size_t>(node)];
    if (node != me() && !(first && first->node == node) && !host.empty()) addresses.push_back({node, host});
  }
  return addresses;
}

// A host without power costs each of those that search for it kConnectS. The ranks need longer than that to end.
void Supervisor::find_absent(Clock::time_point until) {
  absent_.clear();
  absent_at_ = Clock::now();
  for (const NodeAddress& address : addresses_to_ask(coordinator_, nodes())) {
    if (!ranks_.running() || ranks_.asked() || Clock::now() + comm::seconds(kConnectS) > until) return;
    try {
      network_->connect(address.node, address.host, kConnectS);
      network_->close(kUplink);
      if (address.node < me()) return;  // that node coordinates next
    } catch (const comm::Refused&) {
      return;  // search() asks it for the reason
    } catch (const Error&) {
      absent_.push_back(address.node);
    }
    for (const NodeEvent& event : turn(0)) hold(event);
  }
}

// Answers a lower node at once, so that two that search do not wait for each other. A higher one waits until this node has found
// out.
void Supervisor::hold(const NodeEvent& event) {
  if (event.kind == NodeEvent::Kind::joined && event.node < me()) network_->send(event.node, topic::kSearching, news());
  if (event.node != kUplink) early_.push_back(event);
}

Supervisor::Answer Supervisor::ask(const NodeAddress& address, std::optional<NodeAddress>& other, std::string& trouble,
                                   double answer_s) {
  try {
    network_->connect(address.node, address.host, kConnectS);
  } catch (const comm::Refused& error) {
    trouble = error.what();
    if (refusals_.insert(trouble).second) ranks_.say(trouble);
    return trouble.find(kHereAlready) == trouble.npos ? Answer::none : Answer::taken;
  } catch (const Error& error) {
    trouble = error.what();
    return Answer::none;
  }
  const Clock::time_point start = Clock::now();
  std::optional<Answer> answer;
  while (!answer && seconds_since(start) < answer_s && !ranks_.asked()) {
    // Events that come with the answer are kept: nobody sends them again.
    for (const NodeEvent& event : turn(kRetryS)) {
      if (answer == Answer::welcome) {
        early_.push_back(event);  // for handle_as_member(), which may find an order among them
      } else if (event.node != kUplink) {
        hold(event);
      } else if (answer) {
        continue;
      } else if (event.kind == NodeEvent::Kind::gone) {
        trouble = concat("node", address.node, " (", address.host, ") ", event.text);
        answer = Answer::none;
      } else if (event.what == topic::kWelcome) {
        update_job(order_of(event.text));
        coordinator_ = address;
        answer = Answer::welcome;
      } else if (event.what == topic::kSearching) {
        const Order news = order_of(event.text);
        if (fresh_ && news.attempt > 0) {  // the run goes on, so it must not begin anew
          update_job(news);
          fresh_ = false;
        }
        answer = Answer::searching;
      } else if (event.what == topic::kRedirect) {
        other = address_of(event.text);
        answer = Answer::another;
      }
    }
  }
  if (answer != Answer::welcome) network_->close(kUplink);
  return answer.value_or(Answer::searching);
}

// If the cable of this node was out, the others may have chosen another coordinator since, or wait for this node while it waits
// for them.
bool Supervisor::ask_a_missing_node() {
  for (int i = 0; i < nodes(); ++i) {
    const int node = asked_node_ = (asked_node_ + 1) % nodes();
    const bool is_lost = coordinator_ && coordinator_->node == node;
    const std::string& host = is_lost ? coordinator_->host : options_.hosts.hosts[static_cast<std::size_t>(node)];
    if (node == me() || member(node).here || host.empty()) continue;
    std::optional<NodeAddress> other;
    std::string trouble;
    Answer answer = ask({node, host}, other, trouble, kShortAnswerS);
    if (answer == Answer::another && other->node != me())
      answer = ask(*std::exchange(other, std::nullopt), other, trouble, kShortAnswerS);
    if (answer == Answer::welcome) return true;
    for (const NodeEvent& event : std::exchange(early_, {})) handle(event);
    return false;
  }
  return false;
}

std::optional<int> Supervisor::follow() {
  fresh_ = false;
  took_part_ = true;
  if (has_begun_ && !runs_ranks(me())) {
    ranks_.pages().clear();  // of an attempt that is over
    if (metrics_) metrics_->begin({});
  }
  ranks_.say(concat("node", me(), " follows ", name_of(coordinator_->node)));
  NodeJoin join = own_join();
  network_->send(kUplink, topic::kJoin, text_of(join));
  for (const NodeEvent& event : std::exchange(early_, {})) {
    if (const std::optional<int> code = handle_as_member(event)) return code;
  }
  while (coordinator_) {
    for (const NodeEvent& event : turn(kPagesS / 2)) {
      if (const std::optional<int> code = handle_as_member(event)) return code;
    }
    std::optional<NodeEnd> end = ranks_.news();
    if (const std::optional<LinkReport> report = ranks_.links()) network_->send(kUplink, topic::kLinks, text_of(*report));
    if (end || seconds_since(pages_sent_) >= kPagesS) send_pages();
    if (end) {
      end->port = join.port = own_port();
      network_->send(kUplink, topic::kEnded, text_of(*end));
      if (metrics_ && end->all && ranks_.order().ranks.count > 0) metrics_->end();
      if (end->all && end->asked) return kLeft;
    }
    if (join.port == 0 && !ranks_.running()) {
      join = own_join();
      if (join.port > 0) network_->send(kUplink, topic::kJoin, text_of(join));
    }
    if (ranks_.asked() && !ranks_.running()) {
      network_->send(kUplink, topic::kEnded,
                     text_of(NodeEnd{.attempt = ranks_.order().attempt, .code = kLeft, .asked = true, .all = true}));
      return kLeft;
    }
  }
  coordinator_ = lost_;
  if (metrics_) metrics_->end();
  const Clock::time_point lost_at = Clock::now();
  find_absent(lost_at + comm::seconds(options_.grace_s + kLateKillS));
  while (ranks_.running() && !ranks_.in_gate()) {
    // As long as its old ranks may write, this node cannot take part in the next attempt.
    if (seconds_since(lost_at) >= options_.grace_s + kLateS) give_up_own_ranks();
    for (const NodeEvent& event : turn(kPagesS)) hold(event);
    ranks_.news();
  }
  return ranks_.asked() ? std::optional(kLeft) : std::nullopt;
}

std::optional<int> Supervisor::handle_as_member(const NodeEvent& event) {
  if (!coordinator_) {  // an event before this one told that it is lost
    hold(event);
    return std::nullopt;
  }
  if (event.node != kUplink) {
    if (event.kind == NodeEvent::Kind::joined) network_->send(event.node, topic::kRedirect, text_of(*coordinator_));
    return std::nullopt;
  }
  if (event.kind == NodeEvent::Kind::gone) {
    ranks_.say(concat(name_of(coordinator_->node), ", which coordinates, ", event.text));
    lost_ = std::exchange(coordinator_, std::nullopt);
    lost_how_ = event.text;
    fault_ = failed_at_ = Clock::now();
    last_step_ns_ = 0;
    ranks_.end(options_.grace_s);
  } else if (event.what == topic::kOrder) {
    const Order order = order_of(event.text);
    update_job(order);
    ranks_.kill();
    begin_ns_ = telemetry::monotonic_ns();
    if (metrics_) metrics_->begin(ranks_.pages().range(order.ranks.first, order.ranks.count));
    ranks_.start(order);
  } else if (event.what == topic::kWelcome) {
    update_job(order_of(event.text));
  } else if (event.what == topic::kStacks) {
    ranks_.write_stacks();
  } else if (event.what == topic::kStop) {
    ranks_.end(grace_of(event.text));
  } else if (event.what == topic::kFinish) {
    ranks_.kill();
    const RunOver over = over_of(event.text);
    if (!over.why.empty()) ranks_.say(over.why);
    return over.code;
  }
  return std::nullopt;
}

void Supervisor::update_job(const Order& news) {
  // As on a host that froze or was cut off, and comes back when its old job runs no more.
  demand(!took_part_ || news.job == job_, ExitCode::peer, name_of(me()), kOfAnOldJob, "the other hosts run job ", news.job,
         ", and not ", job_, ". Start its command again on this host to join them");
  newest_attempt_ = std::max(newest_attempt_, news.attempt);
  recorded_attempt_ = std::max(recorded_attempt_, news.recorded);
  job_ = news.job;
  has_begun_ = has_begun_ || news.attempt > 0;
  has_loaded_ = has_loaded_ || news.loaded;
  has_saved_ = has_saved_ || news.saved;
  has_trained_ = has_trained_ || news.trained;
  if (!news.config.empty()) options_.config = news.config;  // all ranks of a job read the same, whatever this host's file says
  chosen_ = news.chosen;
}

// The first pages of an attempt tell the coordinator that the gate before it is over.
void Supervisor::send_pages() {
  pages_sent_ = Clock::now();
  const Order& order = ranks_.order();
  if (order.ranks.count > 0 && !ranks_.in_gate())
    network_->send(kUplink, topic::kPages, pages_text(order.attempt, ranks_.pages(), order.ranks.first, order.ranks.count));
}

}  // namespace octet::app
