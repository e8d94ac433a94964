// What a coordinator writes down about attempts, and says about them in the end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "octet/app/supervisor.h"
#include "octet/base/system_call.h"
#include "octet/base/utc.h"

namespace octet::app {
namespace {

constexpr std::size_t kLines = 20;  // attempts that are told in the end

double rounded(double seconds) { return std::round(seconds * 1e3) / 1e3; }

std::string line_of(const telemetry::Attempt& a) {
  return fmt::format("attempt {}: {} to {}, {}; from step {} to {}", a.number, a.started, a.ended,
                     a.what.empty() ? fmt::format("code {}", a.code) : a.what, a.from_step, a.last_step);
}

}  // namespace

bool Supervisor::record(Trouble& trouble, const std::function<void()>& call) {
  try {
    call();
    trouble = {};
    return true;
  } catch (const Error& error) {
    const auto* const system = dynamic_cast<const SystemError*>(&error);
    const int number = system ? system->number() : 0;
    // Texts about the same disk differ: they name temporary files.
    const bool is_known = number != 0 ? number == trouble.number : trouble.text == error.what();
    trouble = {.text = error.what(), .number = number};
    if (!is_known) ranks_.say(concat(error.what(), "; the run goes on"));
    return false;
  }
}

void Supervisor::free_room() {
  // Before this job has loaded, it may have been refused because another one uses the folder. Then the room is of that one.
  if (!made_room_ && !has_loaded_) return;
  record(write_trouble_, [&] { attempts_.free_room(); });
}

void Supervisor::write_down(const telemetry::Attempt& attempt) {
  std::erase_if(waiting_, [&](const telemetry::Attempt& older) { return older.number == attempt.number; });
  waiting_.push_back(attempt);
  write_waiting();
}

void Supervisor::write_waiting() {
  tried_at_ = Clock::now();
  if (waiting_.empty()) return;
  record(write_trouble_, [&] {
    for (; !waiting_.empty(); waiting_.erase(waiting_.begin())) {
      const telemetry::Attempt& attempt = waiting_.front();
      if (without_file_.contains(attempt.number)) {
        if (!attempts_.begin_as(attempt)) {
          ranks_.say(fmt::format("attempt {} is not recorded, because another node has begun an attempt of this number: {}",
                                 attempt.number, line_of(attempt)));
          continue;
        }
        without_file_.erase(attempt.number);
        recorded_attempt_ = std::max(recorded_attempt_, attempt.number);
      }
      attempts_.write(attempt);
    }
  });
}

bool Supervisor::end_orphan() {
  bool found = false;
  if (std::exchange(is_orphan_, false)) ended_.pop_back();  // the node that began the next attempt wrote the end down
  record(read_trouble_, [&] {
    for (telemetry::Attempt& attempt : attempts_.read()) {
      if (attempt.number != recorded_attempt_ || attempt.job != job_) continue;
      found = true;
      if (!ended_.empty() && ended_.back().number == attempt.number) continue;  // this node coordinated it
      if (!attempt.ended.empty()) {
        ended_.push_back(attempt);
        continue;
      }
      attempt.ended = utc_now();
      attempt.code = static_cast<int>(ExitCode::peer);
      attempt.what = concat(name_of(attempt.coordinator), ", which coordinated, ", lost_how_);
      attempt.next = concat("restarts; ", name_of(me()), " coordinates");
      const RanksHere& mine = ranks_.order().ranks;
      if (ranks_.order().attempt == attempt.number && mine.count > 0) record_times(attempt, ranks_.pages().page(mine.first));
      ended_.push_back(attempt);
      is_orphan_ = true;
    }
  });
  return found;
}

void Supervisor::record_start(telemetry::Attempt& attempt, const telemetry::RankPage& page) const {
  for (int i = 0; i < telemetry::kPhases; ++i) {
    const std::int64_t entered = page.entered_ns[static_cast<std::size_t>(i)];
    if (entered > 0) attempt.seconds[std::string(telemetry::name_of(static_cast<telemetry::Phase>(i)))] = since_begin(entered);
  }
  if (page.first_step_ns > 0) attempt.seconds["first_step"] = since_begin(page.first_step_ns);
  attempt.from_step = page.start_step;
  attempt.from = telemetry::name_of(page.origin.load());
}

void Supervisor::record_times(telemetry::Attempt& attempt, const telemetry::RankPage& page) {
  record_start(attempt, page);
  if (fault_) attempt.seconds["stop"] = rounded(seconds_since(*fault_));
  if (page.last_step_ns > 0) last_step_ns_ = page.last_step_ns;
  // Ranks that were asked to end, evaluate or save after their last step lose no time in which a fault is not noticed.
  const bool stepping = !regrouping_ && !left_ && !ranks_.asked() && page.phase == telemetry::Phase::training;
  if (fault_ && stepping && page.last_step_ns > 0) attempt.seconds["last_step"] = since_begin(page.last_step_ns);
  attempt.seconds["total"] = since_begin(telemetry::monotonic_ns());
  attempt.last_step = std::max<std::int64_t>(attempt.from_step, page.step);
  attempt.steps = page.steps;
  // Rank 0 may have ended before it looked for a checkpoint.
  attempt.checkpoint_step = page.saved_step > 0 || ended_.empty() ? page.saved_step.load() : ended_.back().checkpoint_step;
  has_loaded_ = has_loaded_ || attempt.seconds.contains("loading");
  has_saved_ = has_saved_ || page.saved_step > 0;
  has_trained_ = has_trained_ || attempt.seconds.contains("first_step");
}

double Supervisor::since_begin(std::int64_t ns) const { return rounded(static_cast<double>(ns - begin_ns_) * 1e-9); }

void Supervisor::say_all_attempts() {
  const std::size_t first = ended_.size() > kLines ? ended_.size() - kLines : 0;
  if (first > 0) ranks_.say(concat(first, " earlier attempts are in ", (options_.run_folder / "attempts").string()));
  for (std::size_t i = first; i < ended_.size(); ++i) ranks_.say(line_of(ended_[i]));
}

}  // namespace octet::app
