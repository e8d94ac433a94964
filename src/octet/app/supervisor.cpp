#include "octet/app/supervisor.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/utc.h"

namespace octet::app {
namespace {

constexpr std::size_t kLines = 20;  // attempts that are told in the end

// The command that goes on from the newest checkpoint, whatever the first attempt began with.
std::vector<std::string> resuming(const std::vector<std::string>& command) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == "--resume") {
      ++i;
    } else if (!command[i].starts_with("--resume=")) {
      result.push_back(command[i]);
    }
  }
  result.push_back("--resume=auto");
  return result;
}

// The command that begins again where the first attempt was told to begin, because nothing has been saved. What the attempt
// before has left is moved to history/, if the command does not go on from it.
std::vector<std::string> beginning_again(std::vector<std::string> command) {
  const bool told = std::any_of(command.begin(), command.end(), [](const std::string& argument) {
    return argument.starts_with("--resume") || argument.starts_with("--checkpoint.resume");
  });
  if (told) command.push_back("--run.set_aside=true");
  return command;
}

std::string text_of(const telemetry::Attempt& a) {
  return fmt::format("attempt {}: {} to {}, {}; from step {} to {}", a.number, a.started, a.ended,
                     a.what.empty() ? fmt::format("code {}", a.code) : a.what, a.from_step, a.last_step);
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_(std::move(options)), attempts_(options_.run_folder), logs_(options_.run_folder), pages_(options_.ranks) {}

ProcessGroupOptions Supervisor::group_options(const telemetry::Attempt& attempt) {
  ProcessGroupOptions group = local_ranks(options_.ranks,
                                          has_saved_       ? resuming(options_.command)
                                          : ended_.empty() ? options_.command
                                                           : beginning_again(options_.command),
                                          token_);
  for (int rank = 0; rank < options_.ranks; ++rank)
    group.environment[static_cast<std::size_t>(rank)].push_back(pages_.variable(rank));
  group.grace_s = options_.grace_s;
  group.output = [this, &attempt](int rank, StandardStream stream, std::string_view line) {
    options_.output(rank, stream, line);
    logs_.line(rank, line);
    say_recovered(attempt);
  };
  group.note = [this](std::string_view sentence) {
    what_ = sentence;
    options_.note(sentence);
  };
  return group;
}

void Supervisor::say_recovered(const telemetry::Attempt& attempt) {
  const telemetry::RankPage& first = pages_.page(0);
  if (!failed_at_ || first.first_step_ns == 0) return;
  const double since_step = static_cast<double>(telemetry::monotonic_ns() - first.first_step_ns) * 1e-9;
  options_.note(fmt::format("attempt {} trains from step {}: its first step came {:.1f} s after the fault", attempt.number,
                            first.start_step.load(), seconds_since(*failed_at_) - since_step));
  failed_at_.reset();
}

void Supervisor::record_times(const ProcessGroup& group, telemetry::Attempt& attempt) {
  const auto rounded = [](double seconds) { return std::round(seconds * 1e3) / 1e3; };
  const auto since_begin = [&](std::int64_t ns) { return rounded(static_cast<double>(ns - begin_ns_) * 1e-9); };
  const telemetry::RankPage& first = pages_.page(0);
  for (int i = 0; i < telemetry::kPhases; ++i) {
    const std::int64_t entered = first.entered_ns[static_cast<std::size_t>(i)];
    if (entered > 0) attempt.seconds[std::string(name_of(static_cast<telemetry::Phase>(i)))] = since_begin(entered);
  }
  if (first.first_step_ns > 0) attempt.seconds["first_step"] = since_begin(first.first_step_ns);
  if (group.failed_at()) attempt.seconds["stop"] = rounded(seconds_since(*group.failed_at()));
  attempt.seconds["total"] = since_begin(telemetry::monotonic_ns());
  attempt.from_step = first.start_step;
  attempt.last_step = std::max<std::int64_t>(attempt.from_step, first.step);
  attempt.checkpoint_step = first.saved_step > 0 ? first.saved_step.load() : attempt.from_step;
  has_saved_ = has_saved_ || first.saved_step > 0;
}

int Supervisor::run_attempt(telemetry::Attempt& attempt, bool& asked) {
  logs_.begin_attempt(attempt.number, options_.ranks);
  pages_.clear();
  what_.clear();
  begin_ns_ = telemetry::monotonic_ns();
  ProcessGroup group(group_options(attempt), &signals_);
  attempt.code = group.run();
  asked = group.asked_to_end();
  attempt.ended = utc_now();
  attempt.what = what_;
  record_times(group, attempt);
  if (group.failed_at()) failed_at_ = group.failed_at();
  return attempt.code;
}

int Supervisor::run() {
  RestartBudget budget(options_.limits);
  for (;;) {
    telemetry::Attempt attempt{
        .ranks = options_.ranks, .started = utc_now(), .supervisor = ProcessIdentity::mine(), .pages = pages_.descriptor()};
    // Without a file of its own the attempt must not overwrite that of another one.
    const bool has_file = record([&] { attempts_.begin(attempt); });
    if (!has_file) attempt.number = ended_.empty() ? 1 : ended_.back().number + 1;
    bool asked = false;
    const int code = run_attempt(attempt, asked);
    const RestartBudget::Decision decision = budget.judge({.code = code,
                                                           .asked = asked,
                                                           .saved_step = pages_.page(0).saved_step,
                                                           .at_s = static_cast<double>(telemetry::monotonic_ns()) * 1e-9});
    if (decision.restarts) {
      attempt.next = decision.wait_s > 0 ? fmt::format("restarts in {:.0f} s", decision.wait_s) : "restarts";
    } else if (code != 0) {
      attempt.next = concat("stops", decision.why.empty() ? "" : ": ", decision.why);
    }
    if (has_file) record([&] { attempts_.write(attempt); });
    ended_.push_back(attempt);
    if (code != 0)
      options_.note(concat(
          "attempt ", attempt.number, " ended with code ", code, " at step ", attempt.last_step, "; the newest checkpoint is ",
          attempt.checkpoint_step > 0 ? concat("of step ", attempt.checkpoint_step) : "not there yet", "; ", attempt.next));
    if (!decision.restarts || !pause(decision.wait_s)) {
      if (ended_.size() > 1) say_all_attempts();
      return decision.restarts ? static_cast<int>(ExitCode::preempted) : code;
    }
  }
}

bool Supervisor::record(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    options_.note(concat(error.what(), "; the run goes on"));
    return false;
  }
}

bool Supervisor::pause(double seconds) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (const int signal : signals_.take()) {
      if (signal != SIGTERM && signal != SIGINT && signal != SIGHUP) continue;
      options_.note("asked to end while no rank ran; the same command goes on from the newest checkpoint");
      return false;
    }
    const double left = seconds - seconds_since(start);
    if (left <= 0) return true;
    pollfd signal{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
    ::poll(&signal, 1, static_cast<int>(std::ceil(left * 1e3)));
  }
}

void Supervisor::say_all_attempts() const {
  const std::size_t first = ended_.size() > kLines ? ended_.size() - kLines : 0;
  if (first > 0) options_.note(concat(first, " earlier attempts are in ", (options_.run_folder / "attempts").string()));
  for (std::size_t i = first; i < ended_.size(); ++i) options_.note(text_of(ended_[i]));
}

}  // namespace octet::app
