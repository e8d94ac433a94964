#include "octet/app/node_ranks.h"

#include <fmt/format.h>
#include <poll.h>

#include <cmath>
#include <csignal>
#include <utility>

#include "octet/app/last_sentences.h"
#include "octet/app/thread_stacks.h"
#include "octet/base/control_group.h"
#include "octet/base/file.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/format.h"
#include "octet/train/signals.h"

namespace octet::app {
namespace {

constexpr std::string_view kError = "octet: ";  // begins the line with which main() says why a command failed

// Rank 0 renames a damaged run.json, and may fail before it writes another. An I/O error counts as a yes, because rank 0 tries
// again after it.
bool has_trained_here(const std::filesystem::path& run_folder) {
  for (const char* name : {"run.json", "run.json.damaged"}) {
    std::error_code error;
    if (std::filesystem::exists(run_folder / name, error) || error) return true;
  }
  return false;
}

}  // namespace

NodeRanks::NodeRanks(NodeRanksOptions options)
    : options_(std::move(options)), logs_(options_.run_folder), pages_(options_.most_ranks) {}

void NodeRanks::say(std::string_view sentence) {
  options_.note(sentence);
  logs_.node_line(options_.node, sentence);
}

void NodeRanks::start(const Order& order) {
  order_ = order;
  what_.clear();
  errors_.clear();
  told_failure_ = told_end_ = writes_stacks_ = false;
  pages_.clear();
  group_.reset();
  early_end_.reset();
  links_.reset();
  ranks_wait_ = order.ranks.count > 0;
  // A signal that came before the order was for this host, and no rank will hear of it.
  if (ranks_wait_ && asked_) {
    return end_early(
        {.code = static_cast<int>(ExitCode::preempted), .what = "asked to end before ranks were started", .asked = true});
  }
  if (ranks_wait_ && !unfit_.empty()) return end_early({.code = static_cast<int>(ExitCode::unfit), .what = unfit_});
  or_end_early([this] { prepare_and_start(); });
}

void NodeRanks::prepare_and_start() {
  const Order& order = order_;
  memory_kills_ = memory_kills();
  // A host that runs no ranks now may still have snapshots that others need.
  if (order.ranks.count > 0 && (!snapshots_ || snapshots_->ranks() != order.ranks.count)) {
    snapshots_ = std::make_shared<checkpoint::SnapshotMemory>(order.ranks.count);
    if (options_.replicas) options_.replicas->offer(snapshots_);
  }
  const std::optional<GateKind> kind = gate_of(order);
  if (kind && !gate_) {
    std::vector<std::string> environment;
    if (ranks_wait_ && !order.links.empty()) {
      environment.push_back(LinkPlaces{.node = options_.node, .to = order.links}.variable());
      if (!options_.token.empty()) environment.push_back(options_.token);
    }
    gate_.emplace(*kind, options_.run_folder, options_.gpus, std::move(environment), signals_);
  }
  if (ranks_wait_ && !gate_) start_ranks();
}

void NodeRanks::end_early(NodeEnd end) {
  ranks_wait_ = false;
  end.attempt = order_.attempt;
  end.all = true;
  early_end_ = std::move(end);
}

void NodeRanks::or_end_early(const std::function<void()>& start) {
  try {
    start();
  } catch (const Error& error) {
    group_.reset();
    say(error.what());
    end_early({.code = static_cast<int>(error.code()), .what = error.what()});
  }
}

std::optional<GateKind> NodeRanks::gate_of(const Order& order) const {
  if (!options_.gate || !unfit_.empty()) return std::nullopt;
  if (!has_passed_) return GateKind::full;
  return order.gate && order.ranks.count > 0 ? std::optional(GateKind::quick) : std::nullopt;
}

void NodeRanks::end_gate() {
  const GateEnd end = gate_->conclude();
  const bool full = gate_->kind() == GateKind::full;
  if (end.code == 0) {
    has_passed_ = has_passed_ || full;
    logs_.node_line(options_.node,
                    fmt::format("this host has passed its {} gate in {:.1f} s", name_of(gate_->kind()), gate_->seconds()));
  } else if (end.code == static_cast<int>(ExitCode::unfit) && end.cause == Cause::unknown) {
    unfit_ = end.what;
  }
  if (ranks_wait_ && !end.links.empty()) {
    links_ = {.attempt = order_.attempt, .links = end.links};
    for (const LinkRate& link : end.links) logs_.node_line(options_.node, concat("the link to ", text_of(link)));
  }
  gate_.reset();
  if (end.code == 0 && ranks_wait_) return or_end_early([this] { start_ranks(); });
  // Also if the ranks were not to be started any more.
  const int code = end.code != 0 ? end.code : static_cast<int>(ExitCode::peer);
  if (order_.ranks.count > 0 || end.code != 0)
    end_early({.code = code,
               .what = end.what,
               .cause = end.cause,
               .asked = code == static_cast<int>(ExitCode::preempted)});
}

void NodeRanks::tell_of_edit() {
  const std::filesystem::path& file = options_.config_file;
  std::error_code gone;
  if (!std::filesystem::is_regular_file(file, gone)) return;
  std::string now;
  try {
    now = read_file(file);
  } catch (const Error&) {
    return;  // the ranks do not need it
  }
  if (now == order_.config || now == told_config_) return;
  told_config_ = now;
  say(concat(file.string(), " differs from the configuration with which this run was started. The ranks read that ",
             "configuration; the next `octet launch` reads the file"));
}

void NodeRanks::start_ranks() {
  ranks_wait_ = false;
  const Order& order = order_;
  // Without run.json rank 0 would take the run for a new one, and its checkpoints would go beneath the mount point.
  if (order.trained && !has_trained_here(options_.run_folder)) {
    const std::string what = concat((options_.run_folder / "run.json").string(),
                                    ": is gone, although this run has trained. Is a file system not mounted?");
    say(what);
    return end_early({.code = static_cast<int>(ExitCode::data), .what = what, .cause = Cause::storage});
  }
  config_.reset();
  if (!order.config.empty()) {
    config_.emplace(kConfigOfJob, order.config);
    tell_of_edit();
  }
  logs_.begin_attempt(order.attempt, order.ranks.first, order.ranks.count);
  ProcessGroupOptions group = local_ranks(order.ranks, order.command, options_.token);
  checkpoint::ReplicaPlaces replicas = order.replicas;
  if (options_.replicas) replicas.bytes_here = options_.replicas->bytes();
  for (std::size_t i = 0; i < group.environment.size(); ++i) {
    group.environment[i].push_back(pages_.variable(order.ranks.first + static_cast<int>(i)));
    group.environment[i].push_back(telemetry::attempt_variable({.job = order.job, .number = order.attempt}));
    group.environment[i].push_back(snapshots_->variable(static_cast<int>(i)));
    if (options_.replicas) group.environment[i].push_back(replicas.variable());
    if (config_) group.environment[i].push_back(config_->variable());
    group.environment[i].push_back(copies_.variable());
  }
  group.grace_s = options_.grace_s;
  group.output = [this, said = LastSentences()](int rank, StandardStream stream, std::string_view whole) mutable {
    if (writes_stacks_ && is_stack_line(whole)) return logs_.line(rank, readable_stack_line(whole));
    std::string_view line = whole;
    if (stream == StandardStream::err && line.starts_with(kError)) {
      line.remove_suffix(line.back() == '\n' ? 1 : 0);
      errors_[rank] = line.substr(kError.size());
    }
    if (!said.repeats(stream, whole)) options_.output(rank, stream, whole);
    logs_.line(rank, whole);
  };
  group.note = [this](std::string_view sentence) {
    what_ = sentence;
    if (is_out_of_memory()) {
      const HostMemory memory = host_memory();
      what_ +=
          concat(" by the kernel, because memory was used up",
                 memory.total_bytes ? concat(": this host's ranks may use ", telemetry::format_bytes(*memory.total_bytes)) : "");
    }
    say(what_);
  };
  group_.emplace(std::move(group), &signals_);
  group_->start();
}

void NodeRanks::turn(int also, double at_most_s) {
  if (gate_) {
    gate_->turn(also, at_most_s);
    asked_ = asked_ || gate_->asked_to_end();
    if (!gate_->running()) end_gate();
    return;
  }
  if (running()) {
    group_->turn(also, at_most_s);
    asked_ = asked_ || group_->asked_to_end();
    return;
  }
  std::array<pollfd, 2> polled = {pollfd{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = also, .events = POLLIN, .revents = 0}};
  ::poll(polled.data(), polled.size(), static_cast<int>(std::ceil(at_most_s * 1e3)));
  for (const int signal : signals_.take()) asked_ = asked_ || train::asks_to_stop(signal);
}

bool NodeRanks::is_out_of_memory() const {
  if (!memory_kills_ || group_->code() != 128 + SIGKILL) return false;
  const std::optional<std::int64_t> now = memory_kills();
  return now && *now > *memory_kills_;
}

// Why this node's ranks have failed, as far as more is known than their code.
Cause NodeRanks::cause() const {
  if (is_out_of_memory()) return Cause::memory;
  if (group_->code() == static_cast<int>(ExitCode::unfit)) return Cause::wrong_bits;
  if (group_->code() != static_cast<int>(ExitCode::data)) return Cause::unknown;
  for (int i = 0; i < order_.ranks.count; ++i) {
    if (pages_.page(order_.ranks.first + i).storage_failed) return Cause::storage;
  }
  return Cause::unknown;
}

std::vector<int> NodeRanks::unreachable() const {
  std::vector<int> ranks;
  if (group_->code() != static_cast<int>(ExitCode::peer)) return ranks;
  for (int i = 0; i < order_.ranks.count; ++i) {
    const std::int64_t rank = pages_.page(order_.ranks.first + i).unreachable - 1;
    if (rank >= 0) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string NodeRanks::what() const {
  const auto error = errors_.find(group_->noted_rank());
  return error == errors_.end() ? what_ : concat(what_, ": ", error->second);
}

std::optional<NodeEnd> NodeRanks::news() {
  if (early_end_) return std::exchange(early_end_, std::nullopt);
  if (!group_ || told_end_) return std::nullopt;
  NodeEnd end{.attempt = order_.attempt};
  if (group_->running()) {
    if (told_failure_ || !group_->failed_at()) return std::nullopt;
    told_failure_ = true;
    end.code = group_->code();
    end.what = what();
    end.cause = cause();
    end.unreachable = unreachable();
    return end;
  }
  end.code = group_->conclude();
  end.what = what();
  end.cause = cause();
  end.unreachable = unreachable();
  end.asked = group_->asked_to_end();
  if (end.cause == Cause::wrong_bits) has_passed_ = false;  // a full gate is to find out why
  end.all = told_end_ = true;
  return end;
}

void NodeRanks::end(double grace_s) {
  ranks_wait_ = false;
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
  ranks_wait_ = false;
  group_.reset();
}

}  // namespace octet::app
