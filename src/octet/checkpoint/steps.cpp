#include "octet/checkpoint/steps.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "octet/base/log.h"
#include "octet/base/require.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kUnfinished = ".tmp-";

std::optional<std::int64_t> whole_number(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  const std::optional<std::int64_t> step = whole_number(name.substr(kPrefix.size()));
  return step && step_name(*step) == name ? step : std::nullopt;
}

bool is_running(std::int64_t pid) { return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH; }

std::vector<fs::path> children(const fs::path& root) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error))
    result.push_back(entry->path());
  return result;
}

}  // namespace

std::string step_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(kPrefix) + digits;
}

std::vector<StepDirectory> find_checkpoints(const fs::path& root) {
  std::vector<StepDirectory> result;
  for (const fs::path& path : children(root)) {
    if (const auto step = step_of(path.filename().string())) result.push_back({*step, path});
  }
  std::sort(result.begin(), result.end(), [](const StepDirectory& a, const StepDirectory& b) { return a.step > b.step; });
  return result;
}

fs::path unfinished_name(const fs::path& step_directory) {
  return fs::path(step_directory).concat(concat(kUnfinished, ::getpid()));
}

void remove_unfinished(const fs::path& root) {
  for (const fs::path& path : children(root)) {
    const std::string name = path.filename().string();
    const std::size_t mark = name.find(kUnfinished);
    if (mark == std::string::npos || !step_of(std::string_view(name).substr(0, mark))) continue;
    std::string_view process = std::string_view(name).substr(mark + kUnfinished.size());
    process = process.substr(0, process.find('.'));  // drops the token and kReplaced
    const auto pid = whole_number(process);
    if (!pid || (*pid != ::getpid() && is_running(*pid))) continue;
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
}

void discard_checkpoint(const fs::path& step_directory) {
  const fs::path away = unfinished_name(step_directory);
  std::error_code error;
  fs::remove_all(away, error);
  fs::rename(step_directory, away, error);
  if (!error) fs::remove_all(away, error);
  if (error) log_warning(concat(step_directory.string(), ": cannot delete: ", error.message()));
}

}  // namespace octet::checkpoint
