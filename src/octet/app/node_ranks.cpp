#include "octet/app/node_ranks.h"

#include <poll.h>

#include <cmath>
#include <utility>

#include "octet/app/thread_stacks.h"
#include "octet/telemetry/attempts.h"

namespace octet::app {

NodeRanks::NodeRanks(NodeRanksOptions options)
    : options_(std::move(options)), logs_(options_.run_folder), pages_(options_.most_ranks) {}

void NodeRanks::say(std::string_view sentence) {
  options_.note(sentence);
  logs_.node_line(options_.node, sentence);
}

void NodeRanks::start(const Order& order) {
  order_ = order;
  what_.clear();
  told_failure_ = told_end_ = writes_stacks_ = false;
  pages_.clear();
  group_.reset();
  if (order.ranks.count == 0) return;
  logs_.begin_attempt(order.attempt, order.ranks.first, order.ranks.count);
  ProcessGroupOptions group = local_ranks(order.ranks, order.command, options_.token);
  for (std::size_t i = 0; i < group.environment.size(); ++i) {
    group.environment[i].push_back(pages_.variable(order.ranks.first + static_cast<int>(i)));
    group.environment[i].push_back(telemetry::attempt_variable({.job = order.job, .number = order.attempt}));
  }
  group.grace_s = options_.grace_s;
  group.output = [this](int rank, StandardStream stream, std::string_view line) {
    if (writes_stacks_ && is_stack_line(line)) return logs_.line(rank, readable_stack_line(line));
    options_.output(rank, stream, line);
    logs_.line(rank, line);
  };
  group.note = [this](std::string_view sentence) {
    what_ = sentence;
    say(sentence);
  };
  group_.emplace(std::move(group), &signals_);
  group_->start();
}

void NodeRanks::turn(int also, double at_most_s) {
  if (running()) {
    group_->turn(also, at_most_s);
    asked_ = asked_ || group_->asked_to_end();
    return;
  }
  std::array<pollfd, 2> polled = {pollfd{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = also, .events = POLLIN, .revents = 0}};
  ::poll(polled.data(), polled.size(), static_cast<int>(std::ceil(at_most_s * 1e3)));
  for (const int signal : signals_.take()) asked_ = asked_ || signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

std::optional<NodeEnd> NodeRanks::news() {
  if (!group_ || told_end_) return std::nullopt;
  NodeEnd end{.attempt = order_.attempt};
  if (group_->running()) {
    if (told_failure_ || !group_->failed_at()) return std::nullopt;
    told_failure_ = true;
    end.code = group_->code();
    end.what = what_;
    return end;
  }
  end.code = group_->conclude();
  end.what = what_;
  end.asked = group_->asked_to_end();
  end.all = told_end_ = true;
  return end;
}

void NodeRanks::end(double grace_s) {
  if (group_) group_->end(grace_s);
}

void NodeRanks::write_stacks() {
  if (!group_) return;
  writes_stacks_ = true;
  for (int i = 0; i < order_.ranks.count; ++i) {
    const int rank = order_.ranks.first + i;
    for (const std::string& line : ask_for_stacks(group_->pid(i))) logs_.line(rank, line + "\n");
  }
}

void NodeRanks::kill() {
  told_end_ = true;
  group_.reset();
}

}  // namespace octet::app
