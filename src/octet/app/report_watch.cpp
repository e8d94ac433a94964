// `octet report DIR --watch`: the page of running runs on this machine's loopback.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <utility>

#include "octet/app/http_server.h"
#include "octet/app/report.h"
#include "octet/app/signal_pipe.h"
#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/report/watch.h"

namespace octet::app {
namespace {

namespace fs = std::filesystem;

// The properties of a file that change when it grows or is replaced.
struct Stamp {
  fs::path path;
  fs::file_time_type time;
  std::uintmax_t size;
  bool operator==(const Stamp&) const = default;
};

std::vector<Stamp> stamps_of(const std::vector<fs::path>& folders) {
  std::vector<Stamp> stamps;
  for (const fs::path& folder : folders) {
    for (const char* name : {"run.json", "metrics.jsonl", "fp8_health.jsonl", "attention_health.jsonl", "expert_loads.jsonl",
                             "stragglers.jsonl"}) {
      std::error_code missing;
      const fs::path path = folder / name;
      const auto time = fs::last_write_time(path, missing);
      const auto size = missing ? 0 : fs::file_size(path, missing);
      if (!missing) stamps.push_back({path, time, size});
    }
  }
  return stamps;
}

std::string time_of_day(fs::file_time_type time) {
  const auto system = std::chrono::file_clock::to_sys(time);
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::system_clock::duration>(system));
  std::tm fields{};
  ::localtime_r(&seconds, &fields);
  char text[32];
  std::strftime(text, sizeof text, "%H:%M:%S", &fields);
  return text;
}

std::shared_ptr<const HttpContent> content(std::string type, std::string body) {
  std::string etag = fmt::format("\"{:016x}\"", checksum(std::as_bytes(std::span(body.data(), body.size()))));
  return std::make_shared<const HttpContent>(
      HttpContent{.type = std::move(type), .body = std::move(body), .etag = std::move(etag)});
}

// The page. It is drawn again when a file has changed, but at most once a second.
class Page {
 public:
  explicit Page(const ReportArgs& args) : args_(args) {}

  std::shared_ptr<const HttpContent> now() {
    if (page_ && Clock::now() < next_) return page_;
    try {
      const std::vector<fs::path> folders = folders_of_runs(args_.directories);
      std::vector<Stamp> stamps = stamps_of(folders);
      if (!page_ || stamps != stamps_) page_ = draw(folders, stamps);
      stamps_ = std::move(stamps);
    } catch (const Error& error) {  // nothing logged yet, or nothing left
      page_ = content(kHtml, report::waiting_page(title_of(args_, {}), error.what()));
      stamps_.clear();
    }
    next_ = Clock::now() + std::chrono::seconds(1);
    return page_;
  }

 private:
  static constexpr const char* kHtml = "text/html; charset=utf-8";

  std::shared_ptr<const HttpContent> draw(const std::vector<fs::path>& folders, const std::vector<Stamp>& stamps) const {
    std::vector<report::Run> runs = read_runs(args_, folders);
    arrange(runs, baseline_of(args_));
    const auto newest =
        std::max_element(stamps.begin(), stamps.end(), [](const Stamp& a, const Stamp& b) { return a.time < b.time; });
    return content(kHtml, report::watched_page(title_of(args_, runs), runs, report::compare(runs, baseline_of(args_)),
                                               newest == stamps.end() ? "" : time_of_day(newest->time)));
  }

  const ReportArgs& args_;
  std::vector<Stamp> stamps_;
  std::shared_ptr<const HttpContent> page_;
  Clock::time_point next_;
};

}  // namespace

int watch_runs(const ReportArgs& args) {
  for (const fs::path& directory : args.directories) {
    demand(is_folder(directory), ExitCode::data, directory.string(),
           path_exists(directory) ? ": not a folder" : ": no such folder",
           "; give the folder of a run, or one that holds several");
  }
  Page page(args);
  const auto script = content("text/javascript; charset=utf-8", report::kWatchScript);
  const SignalPipe signals;
  const HttpServer::Place place{.port = args.port, .hint = "choose another port with --port (0 takes one that is free)"};
  HttpServer server(place, [&](std::string_view path) {
    return path == "/" ? page.now() : path == "/watch.js" ? script : nullptr;
  });
  fmt::print("report: http://127.0.0.1:{}/ until Ctrl-C\n", server.port());
  std::fflush(stdout);
  server.run(signals.fd(), [&] {
    const std::vector<int> arrived = signals.take();
    return std::any_of(arrived.begin(), arrived.end(),
                       [](int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; });
  });
  return 0;
}

}  // namespace octet::app
