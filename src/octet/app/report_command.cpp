#include <cstdio>

#include <algorithm>

#include "octet/app/commands.h"
#include "octet/base/require.h"
#include "octet/report/html.h"
#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::app {
namespace {

// A run's own folder, or the folders of runs that it holds, in the order of their names.
void collect_runs(const std::filesystem::path& directory, std::vector<std::filesystem::path>& runs) {
  std::error_code error;
  demand(std::filesystem::is_directory(directory, error), ExitCode::data, directory.string(), ": not a folder");
  if (std::filesystem::exists(directory / "metrics.jsonl")) {
    runs.push_back(directory);
    return;
  }
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (std::filesystem::exists(entry.path() / "metrics.jsonl")) found.push_back(entry.path());
  }
  demand(!error, ExitCode::data, directory.string(), ": ", error.message());
  demand(!found.empty(), ExitCode::data, directory.string(), ": no metrics.jsonl here or in a folder below; give the folder of a run");
  std::sort(found.begin(), found.end());
  runs.insert(runs.end(), found.begin(), found.end());
}

}  // namespace

int run_report(const ReportArgs& args) {
  std::vector<std::filesystem::path> directories;
  for (const std::filesystem::path& directory : args.directories) collect_runs(directory, directories);
  std::vector<report::Run> runs;
  for (const std::filesystem::path& directory : directories) {
    runs.push_back(report::read_run(directory));
    if (runs.back().broken_lines > 0) {
      std::fprintf(stderr, "warning: %s: %lld broken lines passed over\n", directory.c_str(),
                   static_cast<long long>(runs.back().broken_lines));
    }
  }
  // The baseline stands first, wherever it was named.
  std::stable_partition(runs.begin(), runs.end(), [&](const report::Run& run) { return run.info.name == args.baseline; });
  const report::Comparison comparison = report::compare(runs, args.baseline);
  const std::filesystem::path output = args.output.empty() ? args.directories.front() : args.output;
  std::filesystem::create_directories(output);
  const std::string title = !args.title.empty() ? args.title : runs.size() == 1 ? runs.front().info.name : "Recipes compared";
  report::write_report(output, title, runs, comparison);
  std::fputs(args.json ? (report::render_json(comparison) + "\n").c_str() : report::render_text(comparison).c_str(), stdout);
  if (!args.json) std::printf("report: %s\n", (output / "report.html").c_str());
  return 0;
}

}  // namespace octet::app
