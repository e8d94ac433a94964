#include "octet/app/rank_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/signals_held.h"
#include "octet/base/start_thread.h"
#include "octet/base/utc.h"

namespace octet::app {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{16} << 20;  // bytes that wait for a slow disk

// Lines of a run begin with their time already (base/log.h).
bool has_time(std::string_view line) { return line.size() > 20 && line[4] == '-' && line[10] == 'T' && line[19] == 'Z'; }

}  // namespace

RankLogs::RankLogs(const std::filesystem::path& run_folder) : folder_(run_folder / "logs") {
  const SignalsHeld held;
  thread_ = start_thread("the thread that writes logs", [this] { write_all(); });
}

RankLogs::~RankLogs() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void RankLogs::begin_attempt(std::int64_t number, int first, int count) {
  for (int rank = first; rank < first + count; ++rank) line(rank, fmt::format("==== attempt {} ====", number));
}

void RankLogs::line(int rank, std::string_view text) { add(fmt::format("rank-{:05}.log", rank), text); }

void RankLogs::node_line(int node, std::string_view text) { add(fmt::format("node-{:03}.log", node), text); }

void RankLogs::add(const std::string& name, std::string_view text) {
  std::string line = has_time(text) ? std::string(text) : fmt::format("{} {}", utc_now(), text);
  if (line.back() != '\n') line += '\n';
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ + line.size() > kMostWaiting) {
      ++left_out_;
      return;
    }
    waiting_bytes_ += line.size();
    waiting_[name] += line;
  }
  wake_.notify_all();
}

void RankLogs::write_all() {
  std::unique_lock lock(mutex_);
  while (!stop_ || !waiting_.empty()) {
    wake_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    const std::map<std::string, std::string> texts = std::exchange(waiting_, {});
    waiting_bytes_ = 0;
    const std::uint64_t left_out = std::exchange(left_out_, 0);
    lock.unlock();
    for (const auto& [name, text] : texts) append(name, text);
    if (left_out > 0) log_warning(concat(folder_.string(), ": the disk is slow; ", left_out, " lines were left out"));
    lock.lock();
  }
}

void RankLogs::append(const std::string& name, const std::string& text) {
  const std::filesystem::path path = folder_ / name;
  std::string why;
  try {
    make_folders(folder_);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) why = std::strerror(errno);
    for (std::string_view left = text; fd >= 0 && !left.empty() && why.empty();) {
      const ssize_t written = ::write(fd, left.data(), left.size());
      if (written < 0) why = std::strerror(errno);
      if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
    }
    if (fd >= 0) ::close(fd);
  } catch (const Error& error) {
    why = error.what();
  }
  const bool failed_before = std::exchange(failed_, !why.empty());
  if (failed_ && !failed_before) log_warning(concat(path.string(), ": ", why, "; lines of ranks are lost, the run goes on"));
}

}  // namespace octet::app
