// Deals with snapshot copies on local disks from which a start does not resume.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/jsonl.h"
#include "octet/train/trainer.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

// What run.json says about the process that trained last.
struct Before {
  std::string timeline, local_dir;
  bool saved = false;  // it ended, with a checkpoint of its last step
};

Before before_of(const telemetry::RunInfo& info) {
  static const nlohmann::json::json_pointer kLocalDir("/checkpoint/local_dir");
  const auto code = static_cast<ExitCode>(info.code);
  const nlohmann::json config = json_of(info.config.text);
  const bool named = config.contains(kLocalDir) && config.at(kLocalDir).is_string();
  return {.timeline = info.timeline,
          .local_dir = named ? config.at(kLocalDir).get<std::string>() : "",
          .saved = code == ExitCode::done || code == ExitCode::preempted};
}

// A copy of a snapshot that a rank sees on its host.
struct Seen {
  std::string folder, local_dir;
  std::int64_t step = 0;
  int rank = 0, ranks = 0;
  nlohmann::json parallel;
  int seen_by = 0;
};

// Returns the copies of the newest step. Each line lists the copies that one rank sees.
std::vector<Seen> newest_of(const std::vector<std::string>& lines) {
  std::vector<Seen> newest;
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const nlohmann::json line = parse_json(lines[rank], "the local copies of a rank");
    for (const nlohmann::json& copy : line.at("copies")) {
      const auto step = copy.at("step").get<std::int64_t>();
      if (!newest.empty() && step < newest.front().step) continue;
      if (!newest.empty() && step > newest.front().step) newest.clear();
      newest.push_back({.folder = copy.at("folder").get<std::string>(),
                        .local_dir = copy.at("local_dir").get<std::string>(),
                        .step = step,
                        .rank = copy.at("rank").get<int>(),
                        .ranks = copy.at("ranks").get<int>(),
                        .parallel = copy.at("parallel"),
                        .seen_by = static_cast<int>(rank)});
    }
  }
  return newest;
}

// Returns the names of ranks whose own host has none of these copies.
std::vector<std::string> without_copy(const std::vector<Seen>& copies, int ranks) {
  std::vector<std::string> result;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::none_of(copies.begin(), copies.end(), [&](const Seen& seen) { return seen.rank == rank && seen.seen_by == rank; }))
      result.push_back(concat("rank ", rank));
  }
  return result;
}

// Returns how another start could resume from the copies, or "" if none could. `to_snapshots` tells what makes a start take
// snapshots; it is "" if this start takes them.
std::string way_on(const std::vector<Seen>& copies, const std::string& to_snapshots, const std::string& local_dir, int ranks,
                   const nlohmann::json& parallel) {
  const Seen& copy = copies.front();
  std::vector<std::string> changes;
  if (!to_snapshots.empty()) changes.push_back(to_snapshots);
  if (copy.local_dir != local_dir) changes.push_back("--checkpoint.local_dir=" + copy.local_dir);
  if (copy.ranks != ranks) {
    changes.push_back(concat(copy.ranks, copy.ranks == 1 ? " rank" : " ranks", ", not ", ranks));
  } else {
    for (const auto& [key, there] : copy.parallel.items()) {
      const nlohmann::json now = parallel.value(key, nlohmann::json());
      if (there != now) changes.push_back(concat("parallel.", key, " = ", there.dump(), ", not ", now.dump()));
    }
    std::set<int> all;
    for (const Seen& seen : copies) all.insert(seen.rank);
    if (static_cast<int>(all.size()) == ranks && !without_copy(copies, ranks).empty())
      changes.emplace_back("the hosts in the order that they had before");
  }
  return joined(changes, ", and with ");
}

}  // namespace

void Trainer::judge_local_copies() {
  const bool judges = !from_memory_ && !job_has_trained_ && options_.resume == "auto";
  if (!world_.first_says("whether newer copies on local disks matter", judges)) return;
  const fs::path run = config_.run.output_dir;
  const std::string& local_dir = config_.checkpoint.local_dir;
  const std::int64_t after = resumed_ ? resumed_->step() : 0;
  Before before;
  if (world_.is_first() && before_) before = before_of(*before_);
  before.timeline = world_.from_first("the timeline of local copies", before.timeline);
  before.local_dir = world_.from_first("the folder of local copies", before.local_dir);
  if (before.timeline.empty()) return;

  nlohmann::json mine = {{"known", false}, {"copies", nlohmann::json::array()}};
  for (const std::string& dir : std::set<std::string>{local_dir, before.local_dir}) {
    if (dir.empty()) continue;
    try {
      const fs::path folder = checkpoint::local_folder(dir, run);
      if (checkpoint::keeps_copies_in(folder)) mine["known"] = true;
      for (const checkpoint::LocalCopy& copy : checkpoint::local_copies(folder)) {
        if (copy.timeline != before.timeline || copy.step <= after) continue;
        mine["copies"].push_back({{"folder", folder.string()},
                                  {"local_dir", dir},
                                  {"step", copy.step},
                                  {"rank", copy.rank},
                                  {"ranks", copy.ranks},
                                  {"parallel", copy.parallel}});
      }
    } catch (const SystemError& error) {
      log_warning(error.what());
    }
  }
  const std::vector<std::string> lines = checkpoint::gather(world_.checkpoint_ranks(), "local copies", mine.dump());
  if (!world_.is_first()) return;

  const std::vector<Seen> newest = newest_of(lines);
  const std::string goes_on = concat("this start would go on from ", after > 0 ? concat("step ", after) : "the beginning");
  std::string why;
  if (!newest.empty()) {
    const char* const to_snapshots = snapshots_                             ? ""
                                     : telemetry::own_attempt().job.empty() ? "`octet launch --supervise`"
                                                                            : "--checkpoint.memory_every=auto";
    const std::string way =
        way_on(newest, to_snapshots, local_dir, world_.size(), nlohmann::json(to_json(config_)).at("parallel"));
    const std::int64_t step = newest.front().step;
    if (way.empty()) {  // they are not complete or damaged, or the checkpoint that this start goes on from is not what they need
      const std::vector<std::string> without = without_copy(newest, world_.size());
      if (!without.empty())
        log_warning(concat(newest.front().folder, ": no start can go on from the copies of step ", step, ", because ",
                           fmt::format("{}", fmt::join(without, ", ")), without.size() == 1 ? " has none" : " have none"));
      return;
    }
    why = concat(newest.front().folder, ": a copy of step ", step, " is there, and ", goes_on,
                 ". To go on from the copy, start with ", way, "; with --until ", step,
                 " it only saves a checkpoint, which is for any number of ranks");
  } else {
    const bool known = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return parse_json(line, "the local copies of a rank").at("known").get<bool>();
    });
    if (known || before.saved || local_dir.empty() || local_dir != before.local_dir) return;
    why = concat("checkpoint.local_dir = ", local_dir, ": the run has kept its snapshots there, as ", (run / "run.json").string(),
                 " says, and no host has any there; ", goes_on,
                 ". Is a disk not mounted? If the run folder was moved, move the files of its former folder there to ",
                 checkpoint::local_folder(local_dir, run).filename().string());
  }
  const bool by_person =
      retry(config_.checkpoint.retry_s, [&] { return telemetry::earlier_attempts(config_.run.output_dir); }).empty();
  demand(config_.run.set_aside || !by_person, ExitCode::config, why,
         ". --run.set_aside=true begins there all the same, and moves what is after it to history/");
  log_warning(concat(why, ". It does so, because ", by_person ? "run.set_aside allows it" : "it is a restart of the same job"));
  History history = history_of(run, config_.checkpoint.retry_s);
  if (config_.run.set_aside && !old_history_ && !history.empty()) old_history_ = std::move(history);
}

void Trainer::set_local_copies_aside() {
  if (from_memory_ || job_has_trained_ || config_.checkpoint.local_dir.empty()) return;
  const fs::path folder = checkpoint::local_folder(config_.checkpoint.local_dir, config_.run.output_dir);
  // With another checkpoint.resume the copies are of a history that the run does not continue.
  const std::int64_t kept = options_.resume == "auto" ? step_ : -1;
  try {
    if (retry(config_.checkpoint.retry_s,
              [&] { return checkpoint::set_local_copies_aside(folder, world_.rank(), world_.size(), kept); }))
      log_info(concat(folder.string(), ": copies of a snapshot that the run does not go on from are now in ",
                      (folder / "history").string()));
  } catch (const SystemError& error) {
    if (snapshots_) throw;  // the next snapshot would overwrite copies that could not be moved
    log_warning(error.what());
  }
}

}  // namespace octet::train
