#include "octet/train/history.h"

#include <algorithm>
#include <cstdio>
#include <ranges>
#include <string_view>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/move.h"
#include "octet/base/retry.h"
#include "octet/base/utc.h"
#include "octet/checkpoint/steps.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/jsonl.h"
#include "octet/telemetry/rank_page.h"
#include "octet/telemetry/stragglers.h"
#include "octet/telemetry/tensorboard.h"
#include "octet/train/tokenizer.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

// Files that show that there is a history are moved last, so that an interrupted move is not taken for a new folder: run.json,
// which says that there were checkpoints, or the metrics if there are none.
constexpr std::string_view kWhole[] = {"model", "adapter", "report.html", "report.json"};
constexpr std::string_view kLines[] = {"metrics.jsonl",      "fp8_health.jsonl", "attention_health.jsonl",
                                       "expert_loads.jsonl", "stragglers.jsonl", "tensorboard"};
constexpr std::string_view kCheckpoints = "checkpoints", kRunInfo = "run.json", kHistory = "history";

// Copies take as long as a save, and must not look like a rank that hangs.
void mark_progress() { telemetry::own_page().mark(); }

void move_to(const fs::path& folder, const fs::path& from) { move_into(folder, from, mark_progress); }

void copy_to(const fs::path& folder, const fs::path& from) {
  if (path_exists(from)) copy_tree(from, folder / from.filename(), mark_progress);
}

template <class Record>
void copy_lines_after(std::int64_t step, const fs::path& to, const fs::path& from) {
  if (!path_exists(from)) return;
  const FileReader file(from);
  FileWriter copy(to / from.filename());
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::size_t at = telemetry::size_up_to<Record>(file, step); at < file.size(); at += piece.size()) {
    piece.resize(std::min(piece.size(), file.size() - at));
    file.read_at(at, piece);
    copy.write(piece);
    mark_progress();
  }
  copy.finish();
}

// Makes the folder for checkpoints in `to`. If checkpoints/ is a link, as to a larger disk, they stay on that disk, and the
// folder is a link, too.
fs::path make_checkpoints(const fs::path& to, const fs::path& folder) {
  const fs::path root = folder / kCheckpoints, place = to / kCheckpoints;
  std::error_code error;
  if (!fs::is_symlink(root, error)) {
    make_folders(place);
    return place;
  }
  const fs::path there = true_path(root) / kHistory / to.filename();
  make_folders(there);
  fs::create_directory_symlink(there, place, error);
  if (error) throw SystemError(ExitCode::internal, concat(place.string(), ": cannot create: ", error.message()), error.value());
  return place;
}

void move_checkpoints_after(std::int64_t step, const fs::path& to, const fs::path& folder) {
  const fs::path place = make_checkpoints(to, folder);
  for (const checkpoint::StepDirectory& found : checkpoint::find_checkpoints(folder / kCheckpoints)) {
    if (found.step > step) move_to(place, found.path);
  }
  copy_to(place, folder / kCheckpoints / kKeptTokenizer);  // it belongs to the others, too
  sync_directory(place);
  sync_directory(folder / kCheckpoints);
}

// Moves the checkpoints of a run that is set aside. If checkpoints/ is a link, it stays for the run that begins.
void move_checkpoints(const fs::path& to, const fs::path& folder) {
  const fs::path root = folder / kCheckpoints;
  std::error_code ignored;
  if (!fs::is_symlink(root, ignored) || !path_exists(root)) return move_to(to, root);
  const fs::path place = make_checkpoints(to, folder);
  for (const fs::path& path : entries_of(root)) {
    if (path.filename() != kHistory) move_to(place, path);
  }
  sync_directory(place);
  sync_directory(root);
}

// Moves the attempts of earlier jobs. Those of this job stay.
void move_earlier_attempts(const fs::path& to, const fs::path& folder) {
  const telemetry::Attempts attempts(folder);
  const std::string job = telemetry::own_attempt().job;
  for (const telemetry::Attempt& attempt : attempts.read()) {
    if (!job.empty() && attempt.job == job) continue;
    make_folders(to / "attempts");
    move_to(to / "attempts", attempts.path_of(attempt.number));
  }
  for (const fs::path& changed : {to / "attempts", folder / "attempts"}) {
    if (path_exists(changed)) sync_directory(changed);
  }
}

// A name that is not taken yet.
fs::path new_history(const fs::path& folder, std::int64_t step) {
  const fs::path first = folder / kHistory / concat(utc_now("%Y%m%dT%H%M%SZ"), "-step-", step);
  fs::path path = first;
  for (int n = 2; path_exists(path); ++n) path = concat(first.string(), "-", n);
  make_folders(path);
  return path;
}

// Fills a new history with copies. If that fails, nothing has moved yet, and nothing is left of it.
template <class Copy>
void fill(const fs::path& to, Copy&& copy) {
  try {
    copy();
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(to, ignored);
    throw;
  }
}

}  // namespace

std::string History::text() const {
  std::string parts;
  const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
  if (checkpoints.size() == 1) add("1 checkpoint");
  if (checkpoints.size() > 1) add(concat(checkpoints.size(), " checkpoints"));
  if (has_metrics) add("metrics");
  if (has_model) add("a model");
  if (has_adapter) add("an adapter");
  return concat("a run up to step ", last_step, " (", parts, ")");
}

std::string why_in_the_way(const fs::path& folder, const History& history, std::string_view resume,
                           std::optional<std::int64_t> kept_step) {
  return concat(folder.string(), ": there is ", history.text(), ", and checkpoint.resume = \"", resume,
                "\" does not continue it. Give another run.output_dir, or --run.set_aside=true, which moves ",
                kept_step ? concat("what is after step ", *kept_step) : "it", " to ", (folder / "history").string());
}

History history_of(const fs::path& folder, double retry_s) {
  return retry(retry_s, [&] {
    History history;
    for (const checkpoint::StepDirectory& found : checkpoint::find_checkpoints(folder / kCheckpoints))
      history.checkpoints.push_back(found.step);
    history.has_model = path_exists(folder / "model");
    history.has_adapter = path_exists(folder / "adapter");
    // A line of another program or a later version is something, too.
    for (const std::string_view lines : kLines) {
      if (is_file(folder / lines) && FileReader(folder / lines).size() > 0) history.has_metrics = true;
    }
    if (path_exists(folder / kLines[0])) {
      const auto metrics = telemetry::read_jsonl<telemetry::StepMetrics>(folder / kLines[0]);
      for (const telemetry::StepMetrics& line : metrics.records) history.last_step = std::max(history.last_step, line.step);
    }
    if (!history.checkpoints.empty()) history.last_step = history.checkpoints.front();
    return history;
  });
}

fs::path set_aside(const fs::path& folder, const History& history, std::optional<std::int64_t> kept_step) {
  const fs::path to = new_history(folder, history.last_step);
  if (kept_step) {
    fill(to, [&] {
      for (const std::string_view name : kLines) copy_to(to, folder / name);
      copy_to(to, folder / kRunInfo);
    });
  }
  for (const std::string_view name : kWhole) move_to(to, folder / name);
  if (kept_step) {
    move_checkpoints_after(*kept_step, to, folder);
  } else {
    if (history.checkpoints.empty()) move_to(to, folder / kRunInfo);
    move_earlier_attempts(to, folder);
    for (const std::string_view name : std::views::reverse(kLines)) move_to(to, folder / name);
    move_checkpoints(to, folder);
    move_to(to, folder / kRunInfo);
  }
  sync_directory(to);
  sync_directory(folder);
  return to;
}

fs::path set_abandoned_aside(const fs::path& folder, std::int64_t last_step, std::int64_t kept_step) {
  const fs::path to = new_history(folder, last_step);
  fill(to, [&] {
    copy_lines_after<telemetry::StepMetrics>(kept_step, to, folder / "metrics.jsonl");
    copy_lines_after<telemetry::HealthSample>(kept_step, to, folder / "fp8_health.jsonl");
    copy_lines_after<telemetry::AttentionSample>(kept_step, to, folder / "attention_health.jsonl");
    copy_lines_after<telemetry::ExpertSample>(kept_step, to, folder / "expert_loads.jsonl");
    copy_lines_after<telemetry::StragglerRecord>(kept_step, to, folder / "stragglers.jsonl");
    if (path_exists(folder / "tensorboard") && path_exists(to / "metrics.jsonl")) {
      telemetry::TensorBoardWriter events(to / "tensorboard", std::nullopt);
      for (const telemetry::StepMetrics& line : telemetry::read_jsonl<telemetry::StepMetrics>(to / "metrics.jsonl").records)
        events.write(line);
    }
    copy_to(to, folder / kRunInfo);
  });
  for (const std::string_view name : kWhole) move_to(to, folder / name);
  move_checkpoints_after(kept_step, to, folder);
  sync_directory(to);
  sync_directory(folder);
  return to;
}

}  // namespace octet::train
