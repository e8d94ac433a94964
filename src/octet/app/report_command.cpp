#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "octet/app/picture_file.h"
#include "octet/app/report.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/report/html.h"
#include "octet/report/picture.h"
#include "octet/telemetry/jsonl.h"
#include "octet/train/config.h"

namespace octet::app {
namespace {

std::vector<std::filesystem::path> runs_below(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> found;
  for (const std::filesystem::path& entry : entries_of(directory)) {
    if (path_exists(entry / "metrics.jsonl")) found.push_back(entry);
  }
  return found;
}

// Leaves out runs that have logged no step, and warns of each.
std::vector<std::filesystem::path> with_steps(const std::vector<std::filesystem::path>& folders) {
  std::vector<std::filesystem::path> result;
  for (const std::filesystem::path& folder : folders) {
    if (telemetry::last_record<telemetry::StepMetrics>(folder / "metrics.jsonl")) {
      result.push_back(folder);
    } else {
      log_warning(concat(folder.string(), ": metrics.jsonl holds no step, so the report leaves this run out"));
    }
  }
  demand(!result.empty(), ExitCode::data, folders.front().string(), " and the other runs have logged no step");
  return result;
}

// A run's own folder, or the folders of runs that it holds, in the order of their names.
void collect_runs(const std::filesystem::path& directory, std::vector<std::filesystem::path>& runs) {
  demand(is_folder(directory), ExitCode::data, directory.string(), path_exists(directory) ? ": not a folder" : ": no such folder",
         "; give the folder of a run, or one that holds several");
  if (path_exists(directory / "metrics.jsonl")) {
    runs.push_back(directory);
    return;
  }
  const std::vector<std::filesystem::path> found = runs_below(directory);
  demand(!found.empty(), ExitCode::data, directory.string(),
         ": no metrics.jsonl here or in a folder below; give the folder of a run");
  runs.insert(runs.end(), found.begin(), found.end());
}

struct PictureFile {
  std::filesystem::path path;
  report::Theme theme;
};

// Without a theme, loss.svg stands for loss-light.svg and loss-dark.svg.
std::vector<PictureFile> picture_files(const ReportArgs& args) {
  if (args.picture.empty()) return {};
  check_picture_name(args.picture);
  std::vector<PictureFile> files;
  for (const auto& [name, theme] : {std::pair("light", report::Theme::light), std::pair("dark", report::Theme::dark)}) {
    if (args.theme == name) files.push_back({args.picture, theme});
    if (args.theme.empty())
      files.push_back({args.picture.parent_path() / concat(args.picture.stem().string(), "-", name, ".svg"), theme});
  }
  for (const PictureFile& file : files) check_picture(file.path, report::is_picture_of_runs, "octet report");
  return files;
}

void check_baseline(const std::string& baseline, const std::vector<report::Run>& runs) {
  std::vector<std::string> names;
  for (const report::Run& run : runs) names.push_back(run.info.name);
  if (std::find(names.begin(), names.end(), baseline) != names.end()) return;
  const std::string near = did_you_mean(baseline, names);
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "; there are " : ", ") + name;
  fail(ExitCode::config, "--baseline=", baseline, ": no run has this name", near.empty() ? all : near);
}

// Names runs after their folders if their names are the same. Tables tell runs of a recipe on several numbers of ranks apart by
// the ranks, but not those that nobody has named. The first run with the baseline's name keeps it.
void tell_apart(std::vector<report::Run>& runs, const std::vector<std::filesystem::path>& folders, const std::string& baseline) {
  using Key = std::pair<std::string, std::int64_t>;
  std::map<Key, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const telemetry::RunInfo& info = runs[i].info;
    groups[{info.name, info.name == train::RunConfig{}.name ? 0 : info.processes}].push_back(i);
  }
  for (const auto& [key, group] : groups) {
    if (group.size() < 2) continue;
    for (const std::size_t i : group) {
      if (i == group.front() && key.first == baseline) continue;
      runs[i].info.name = (folders[i] / "").lexically_normal().parent_path().string();
    }
  }
}

}  // namespace

std::vector<std::filesystem::path> folders_of_runs(const std::vector<std::filesystem::path>& directories) {
  std::vector<std::filesystem::path> folders;
  for (const std::filesystem::path& directory : directories) collect_runs(directory, folders);
  return folders;
}

std::vector<report::Run> read_runs(const ReportArgs& args, const std::vector<std::filesystem::path>& folders) {
  std::vector<report::Run> runs;
  for (const std::filesystem::path& folder : folders) runs.push_back(report::read_run(folder));
  tell_apart(runs, folders, baseline_of(args));
  return runs;
}

std::string baseline_of(const ReportArgs& args) { return args.baseline.value_or("bf16"); }

void arrange(std::vector<report::Run>& runs, const std::string& baseline) {
  for (report::Run& run : runs) {
    const auto repeats = [&](const report::Run& other) {
      return run.info.name == other.info.name + "-repeat" && run.info.recipe == other.info.recipe &&
             run.info.processes == other.info.processes;
    };
    if (run.info.repeat_of.empty() && std::any_of(runs.begin(), runs.end(), repeats)) {
      run.info.repeat_of = run.info.name.substr(0, run.info.name.rfind("-repeat"));
    }
  }
  std::stable_partition(runs.begin(), runs.end(), [&](const report::Run& run) { return run.info.name == baseline; });
}

std::string title_of(const ReportArgs& args, const std::vector<report::Run>& runs) {
  if (!args.title.empty()) return args.title;
  if (runs.empty()) return args.directories.front().string();
  if (runs.size() == 1) return runs.front().info.name;
  const bool recipes = std::all_of(runs.begin(), runs.end(), [](const report::Run& run) {
    return run.info.name == run.info.recipe || !run.info.repeat_of.empty();
  });
  return recipes ? "Recipes compared" : "Runs compared";
}

int run_report(const ReportArgs& args) {
  if (args.watch) return watch_runs(args);
  const std::vector<PictureFile> pictures = picture_files(args);
  std::vector<std::filesystem::path> folders = folders_of_runs(args.directories);
  if (folders.size() > 1) folders = with_steps(folders);
  std::vector<report::Run> runs = read_runs(args, folders);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].broken_lines > 0)
      log_warning(concat(folders[i].string(), ": ", runs[i].broken_lines, " broken lines passed over"));
  }
  for (const std::filesystem::path& folder : folders) {
    if (const auto below = runs_below(folder); !below.empty())
      log_warning(concat(folder.string(), ": the folder of a run; runs below it are left out; to include them, give ",
                         below.front().string(), below.size() > 1 ? " and so on" : ""));
  }
  if (args.baseline) check_baseline(*args.baseline, runs);
  arrange(runs, baseline_of(args));
  const report::Comparison comparison = report::compare(runs, baseline_of(args));
  const std::filesystem::path output = args.output.empty() ? args.directories.front() : args.output;
  report::write_report(output, title_of(args, runs), runs, comparison);
  std::fputs(args.json ? (report::render_json(comparison) + "\n").c_str() : report::render_text(comparison).c_str(), stdout);
  if (!args.json) std::printf("report: %s\n", (output / "report.html").c_str());
  for (const PictureFile& picture : pictures) {
    if (picture.path.has_parent_path()) make_folders(picture.path.parent_path());
    write_output(picture.path, report::render_picture(title_of(args, runs), runs, comparison, picture.theme));
    if (!args.json) std::printf("picture: %s\n", picture.path.c_str());
  }
  return 0;
}

}  // namespace octet::app
