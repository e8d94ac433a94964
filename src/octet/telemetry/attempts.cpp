#include "octet/telemetry/attempts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "octet/base/clock.h"
#include "octet/base/descriptor.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/system_call.h"
#include "octet/base/utc.h"

namespace octet::telemetry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoom = ".room";
constexpr std::chrono::milliseconds kLook{50};  // between two attempts to read a file that is still empty
constexpr std::size_t kRoomBytes = 64 << 10;  // of several attempts, on any file system

Json to_json(const Attempt& a) {
  Json json = {{"attempt", a.number},
               {"ranks", a.ranks},
               {"job", a.job},
               {"nodes", a.nodes},
               {"coordinator", {{"node", a.coordinator}, {"host", a.coordinator_host}}},
               {"started", a.started},
               {"from_step", a.from_step},
               {"from", a.from},
               {"ended", a.ended},
               {"code", a.ended.empty() ? Json(nullptr) : Json(a.code)},
               {"what", a.what},
               {"last_step", a.last_step},
               {"steps", a.steps},
               {"checkpoint_step", a.checkpoint_step},
               {"next", a.next},
               {"restarts", nullptr},
               {"excluded", Json::array()},
               {"seconds", Json::object()},
               {"supervisor",
                {{"host", a.supervisor.host},
                 {"machine", a.supervisor.machine},
                 {"boot", a.supervisor.boot},
                 {"pid_namespace", a.supervisor.pid_namespace},
                 {"pid", a.supervisor.pid},
                 {"start_ticks", a.supervisor.start_ticks},
                 {"pages", a.pages}}}};
  for (const auto& [name, seconds] : a.seconds) json["seconds"][name] = seconds;
  if (a.most_restarts >= 0) json["restarts"] = {{"most", a.most_restarts}, {"most_per_hour", a.most_per_hour}};
  for (const ExcludedHost& host : a.excluded)
    json["excluded"].push_back({{"node", host.node}, {"host", host.host}, {"why", host.why}});
  return json;
}

Attempt attempt_of(const nlohmann::json& json) {
  Attempt a;
  a.number = json.at("attempt").get<std::int64_t>();
  a.ranks = json.at("ranks").get<int>();
  a.job = json.value("job", "");
  a.nodes = json.value("nodes", std::vector<std::string>());
  if (const auto by = json.find("coordinator"); by != json.end()) {
    a.coordinator = by->at("node").get<int>();
    a.coordinator_host = by->at("host").get<std::string>();
  }
  a.started = json.at("started").get<std::string>();
  a.from_step = json.at("from_step").get<std::int64_t>();
  a.from = json.value("from", "");
  a.ended = json.at("ended").get<std::string>();
  if (!json.at("code").is_null()) a.code = json.at("code").get<int>();
  a.what = json.at("what").get<std::string>();
  a.last_step = json.at("last_step").get<std::int64_t>();
  a.steps = json.value("steps", std::int64_t{0});
  a.checkpoint_step = json.at("checkpoint_step").get<std::int64_t>();
  a.next = json.at("next").get<std::string>();
  a.seconds = json.at("seconds").get<std::map<std::string, double>>();
  const nlohmann::json& by = json.at("supervisor");
  a.supervisor = {.host = by.at("host").get<std::string>(),
                  .machine = by.at("machine").get<std::string>(),
                  .boot = by.at("boot").get<std::string>(),
                  .pid_namespace = by.at("pid_namespace").get<std::string>(),
                  .pid = by.at("pid").get<std::int64_t>(),
                  .start_ticks = by.at("start_ticks").get<std::int64_t>()};
  a.pages = by.at("pages").get<int>();
  if (const auto most = json.find("restarts"); most != json.end() && !most->is_null()) {
    a.most_restarts = most->at("most").get<int>();
    a.most_per_hour = most->at("most_per_hour").get<int>();
  }
  for (const nlohmann::json& host : json.value("excluded", nlohmann::json::array()))
    a.excluded.push_back({host.at("node").get<int>(), host.at("host").get<std::string>(), host.at("why").get<std::string>()});
  return a;
}

// Returns nothing if the file does not describe an attempt.
std::optional<Attempt> attempt_in(const fs::path& path) {
  const nlohmann::json json = json_of(read_file(path));
  try {
    return attempt_of(json);
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<double> seconds_of(const Attempt& attempt, const char* name) {
  const auto found = attempt.seconds.find(name);
  return found == attempt.seconds.end() ? std::nullopt : std::optional(found->second);
}

// The time between the end of one attempt and the start of the next, as the supervisor of both has measured it, or else by the
// times of their starts, which are known to the second, and on a clock that somebody may set.
std::optional<double> seconds_between(const Attempt& before, const Attempt& next) {
  if (const std::optional<double> waited = seconds_of(next, "waited")) return waited;
  const std::optional<double> begin = seconds_of_utc(before.started), then = seconds_of_utc(next.started);
  const std::optional<double> total = seconds_of(before, "total");
  return begin && then && total ? std::optional(*then - *begin - *total) : std::nullopt;
}

}  // namespace

std::string json_text_of(const Attempt& attempt) {
  return to_json(attempt).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

fs::path Attempts::path_of(std::int64_t number) const { return folder_ / fmt::format("{:08}.json", number); }

void Attempts::begin(Attempt& attempt) const {
  make_folders(folder_);
  attempt.number = std::max<std::int64_t>(attempt.number, 1);
  for (const Attempt& earlier : read()) attempt.number = std::max(attempt.number, earlier.number + 1);
  while (!begin_as(attempt)) ++attempt.number;  // a file that is no attempt, or another supervisor, may have the number
}

bool Attempts::begin_as(const Attempt& attempt) const {
  make_folders(folder_);
  try {
    return create_file_atomically(path_of(attempt.number), json_text_of(attempt));
  } catch (const Error&) {
    // A full disk has room for an empty file, and a file system without hard links takes one that is written later.
  }
  const Descriptor file(::open(path_of(attempt.number).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.open() && errno == EEXIST) return false;
  if (!file.open()) fail_errno(ExitCode::internal, path_of(attempt.number), "");
  // At once, because others who find the number taken want to know by whom.
  const std::string text = json_text_of(attempt);
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) != 0) {  // the file keeps the number from others
    const char* const reason = std::strerror(written < 0 || written == static_cast<ssize_t>(text.size()) ? errno : ENOSPC);
    log_warning(
        concat(path_of(attempt.number).string(), ": ", reason, "; attempt ", attempt.number, " is written down when it ends"));
  }
  return true;
}

void Attempts::write(const Attempt& attempt) const { write_file_atomically(path_of(attempt.number), json_text_of(attempt)); }

bool Attempts::keep_room() const {
  make_folders(folder_);
  if (path_exists(folder_ / kRoom)) return false;
  write_file_atomically(folder_ / kRoom, std::string(kRoomBytes, ' '));
  return true;
}

void Attempts::free_room() const { remove_tree(folder_ / kRoom); }

std::vector<Attempt> Attempts::read() const {
  std::vector<Attempt> result;
  if (!path_exists(folder_)) return result;
  for (const fs::path& path : entries_of(folder_)) {
    if (path.extension() != ".json") continue;
    if (std::optional<Attempt> attempt = attempt_in(path)) {
      result.push_back(*std::move(attempt));
    } else if (warned_.insert(path).second) {
      log_warning(concat(path.string(), ": not an attempt of a run; left out"));
    }
  }
  return result;
}

std::optional<Attempt> Attempts::find(std::int64_t number, double wait_s) const {
  const Clock::time_point start = Clock::now();
  for (;;) {
    std::optional<Attempt> attempt = attempt_in(path_of(number));
    if (attempt || seconds_since(start) >= wait_s) return attempt;
    std::this_thread::sleep_for(kLook);
  }
}

bool goes_on(const Attempt& attempt) { return attempt.ended.empty() || attempt.next.starts_with("restarts"); }

int code_of_run(const Attempt& last) { return last.next == kAskedToEnd ? static_cast<int>(ExitCode::preempted) : last.code; }

std::vector<Attempt> without_refused(const std::vector<Attempt>& attempts) {
  std::vector<Attempt> result;
  for (const Attempt& attempt : attempts) {
    const bool restarts = !result.empty() && result.back().job == attempt.job;
    const bool began = attempt.seconds.contains("training") || attempt.from_step > 0 || attempt.last_step > 0;
    const bool refused = !attempt.ended.empty() && attempt.code == static_cast<int>(ExitCode::config);
    if (!refused || began || restarts) result.push_back(attempt);
  }
  return result;
}

OwnAttempt own_attempt() {
  const char* const value = std::getenv("OCTET_ATTEMPT");
  const std::string_view text = value ? value : "";
  const std::size_t colon = text.find(':');
  OwnAttempt attempt;
  if (colon == text.npos) return {};
  const std::string_view number = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), attempt.number);
  if (error != std::errc() || end != number.data() + number.size()) return {};
  attempt.job = text.substr(0, colon);
  return attempt;
}

std::vector<Attempt> earlier_attempts(const std::filesystem::path& run_folder) {
  const OwnAttempt own = own_attempt();
  if (own.job.empty()) return {};
  std::vector<Attempt> attempts = Attempts(run_folder).read();
  std::erase_if(attempts, [&](const Attempt& a) { return a.job != own.job || a.number >= own.number; });
  return attempts;
}

std::string attempt_variable(const OwnAttempt& attempt) {
  return fmt::format("OCTET_ATTEMPT={}:{}", attempt.job, attempt.number);
}

std::int64_t kept_step(std::span<const Attempt> attempts, std::size_t i) {
  std::int64_t kept = attempts[i].last_step;
  for (const Attempt& later : attempts.subspan(i + 1)) {
    if (later.seconds.contains("training")) kept = std::min(kept, later.from_step);
  }
  return kept;
}

std::int64_t lost_steps(std::span<const Attempt> attempts, std::size_t i) {
  const Attempt& attempt = attempts[i];
  return std::max<std::int64_t>(0, attempt.last_step - std::max(attempt.from_step, kept_step(attempts, i)));
}

TimeOfAttempts time_of(const Attempt& attempt, std::int64_t kept) {
  const auto seconds = [&](const char* name) { return seconds_of(attempt, name).value_or(0); };
  const double total = seconds("total");
  TimeOfAttempts time{.stop = std::min(total, seconds("stop"))};
  const std::int64_t last = attempt.last_step - attempt.from_step, steps = std::max(attempt.steps, last);
  if (!attempt.seconds.contains("first_step") || steps <= 0) {
    time.start = total - time.stop;
    return time;
  }
  time.start = std::min(total - time.stop, seconds("training"));
  const double ran = total - time.stop - time.start;
  if (const std::optional<double> last_step = seconds_of(attempt, "last_step"))
    time.unnoticed = std::clamp(total - time.stop - *last_step, 0.0, ran);
  const double training = ran - time.unnoticed;
  const std::int64_t kept_steps = std::clamp<std::int64_t>(kept - attempt.from_step, 0, std::max<std::int64_t>(last, 0));
  time.kept = training * static_cast<double>(kept_steps) / static_cast<double>(steps);
  time.again = training * static_cast<double>(steps - kept_steps) / static_cast<double>(steps);  // a difference could be -1e-17
  return time;
}

TimeOfAttempts time_of(const std::vector<Attempt>& attempts) {
  TimeOfAttempts sum;
  std::optional<std::size_t> before;  // the attempt that counts before attempt i
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].ended.empty() || !seconds_of_utc(attempts[i].started) || !seconds_of(attempts[i], "total")) continue;
    const TimeOfAttempts part = time_of(attempts[i], kept_step(attempts, i));
    sum.kept += part.kept;
    sum.again += part.again;
    sum.unnoticed += part.unnoticed;
    sum.start += part.start;
    sum.stop += part.stop;
    if (before) sum.between += seconds_between(attempts[*before], attempts[i]).value_or(0);
    before = i;
  }
  sum.between = std::max(0.0, sum.between);
  sum.all = sum.kept + sum.again + sum.unnoticed + sum.start + sum.stop + sum.between;
  return sum;
}

std::optional<double> lost_before(const std::vector<Attempt>& attempts, std::size_t i) {
  if (i == 0) return std::nullopt;
  const Attempt& before = attempts[i - 1];
  const std::optional<double> between = seconds_between(before, attempts[i]), first_step = seconds_of(attempts[i], "first_step");
  if (!between || !first_step) return std::nullopt;
  const TimeOfAttempts end = time_of(before, before.last_step);
  double lost = end.unnoticed + end.stop;
  const std::span<const Attempt> until(attempts.data(), i + 1), earlier = until.first(i);
  for (std::size_t k = 0; k < i; ++k)
    lost += time_of(attempts[k], kept_step(earlier, k)).kept - time_of(attempts[k], kept_step(until, k)).kept;
  return lost + std::max(0.0, *between) + *first_step;
}

}  // namespace octet::telemetry
