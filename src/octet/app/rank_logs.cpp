#include "octet/app/rank_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
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

constexpr std::size_t kMostWaiting = std::size_t{16} << 20;  // bytes that wait for a slow or full disk
constexpr std::chrono::seconds kRetry{1};

// Whether the line already begins with a time, as the lines of a run do (base/log.h).
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
    const bool is_last = stop_;
    std::map<std::string, std::string> texts = std::exchange(waiting_, {});
    lock.unlock();
    std::size_t written = 0;
    for (auto& [name, text] : texts) {
      std::string left = append(name, text);
      written += text.size() - left.size();
      text = std::move(left);
    }
    std::erase_if(texts, [](const auto& file) { return file.second.empty(); });
    lock.lock();
    waiting_bytes_ -= written;
    if (is_last) {
      for (const auto& [name, text] : texts) left_out_ += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
    } else if (!texts.empty()) {
      for (const auto& [name, text] : texts) waiting_[name].insert(0, text);
      wake_.wait_for(lock, kRetry, [&] { return stop_; });
      continue;
    }
    warned_ = false;
    const std::uint64_t left_out = std::exchange(left_out_, 0);
    lock.unlock();
    if (left_out > 0) log_warning(concat(folder_.string(), ": ", left_out, " lines could not be written and are lost"));
    lock.lock();
  }
}

std::string RankLogs::append(const std::string& name, std::string_view text) {
  const std::filesystem::path path = folder_ / name;
  std::string why;
  try {
    make_folders(folder_);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) why = std::strerror(errno);
    while (fd >= 0 && !text.empty() && why.empty()) {
      const ssize_t written = ::write(fd, text.data(), text.size());
      if (written < 0) why = std::strerror(errno);
      if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
    if (fd >= 0) ::close(fd);
  } catch (const Error& error) {
    why = error.what();
  }
  if (!why.empty() && !std::exchange(warned_, true))
    log_warning(
        concat(path.string(), ": ", why, "; lines of ranks wait in memory until they can be written, and the run continues"));
  return std::string(text);
}

}  // namespace octet::app
