#include "octet/checkpoint/steps.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/system_call.h"

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

// Returns nothing unless the directory has an unfinished name.
std::optional<std::int64_t> step_of_unfinished(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t mark = name.find(kUnfinished);
  return mark == std::string::npos ? std::nullopt : step_of(std::string_view(name).substr(0, mark));
}

// Whether this is a checkpoint that was moved out of the way and not replaced.
bool is_only_one_of_its_step(const fs::path& path) {
  const std::optional<std::int64_t> step = step_of_unfinished(path);
  return step && path.native().ends_with(kReplaced) && !path_exists(path.parent_path() / step_name(*step));
}

}  // namespace

std::string step_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(kPrefix) + digits;
}

std::vector<StepDirectory> find_checkpoints(const fs::path& root) {
  std::vector<StepDirectory> result;
  if (!path_exists(root)) {
    demand_not_lost(root);
    return result;
  }
  for (const fs::path& path : entries_of(root)) {
    if (const auto step = step_of(path.filename().string())) result.push_back({*step, path});
  }
  std::sort(result.begin(), result.end(), [](const StepDirectory& a, const StepDirectory& b) { return a.step > b.step; });
  return result;
}

fs::path unfinished_name(const fs::path& step_directory) {
  std::random_device random;
  char token[17];
  std::snprintf(token, sizeof token, "%08" PRIx32 "%08" PRIx32, static_cast<std::uint32_t>(random()),
                static_cast<std::uint32_t>(random()));
  return fs::path(step_directory).concat(concat(kUnfinished, token));
}

void put_back_replaced(const fs::path& root) {
  if (!path_exists(root)) return;
  for (const fs::path& path : entries_of(root)) {
    if (!is_only_one_of_its_step(path)) continue;
    const fs::path place = root / step_name(*step_of_unfinished(path));
    std::error_code error;
    fs::rename(path, place, error);
    if (error) {
      log_warning(concat(path.string(), ": this checkpoint cannot be renamed to ", place.string(), ": ", error.message()));
    } else {
      sync_directory(root);
      log_info(concat(place.string(), ": put back, because the checkpoint that was to take its place is not complete"));
    }
  }
}

void remove_unfinished(const fs::path& root) {
  try {
    for (const fs::path& path : entries_of(root)) {
      if (!step_of_unfinished(path) || is_only_one_of_its_step(path)) continue;
      std::error_code error;
      fs::remove_all(path, error);
      if (error) log_warning(concat(path.string(), ": is of a save that was interrupted; cannot delete: ", error.message()));
    }
  } catch (const SystemError& error) {
    log_warning(concat(error.what(), "; what interrupted saves left there stays"));
  }
}

void discard_checkpoint(const fs::path& step_directory) {
  const fs::path away = unfinished_name(step_directory);
  std::error_code error;
  fs::rename(step_directory, away, error);
  if (!error) fs::remove_all(away, error);
  if (error) log_warning(concat(step_directory.string(), ": cannot delete: ", error.message()));
}

fs::path move_to_damaged(const fs::path& step_directory) {
  const fs::path folder = step_directory.parent_path() / "damaged";
  make_folders(folder);
  fs::path to = folder / step_directory.filename();
  for (int n = 2; path_exists(to); ++n) to = folder / concat(step_directory.filename().string(), "-", n);
  if (std::rename(step_directory.c_str(), to.c_str()) != 0) {
    fail_errno(ExitCode::internal, step_directory, concat("is damaged, and cannot be moved to ", folder.string()));
  }
  sync_directory(folder);
  sync_directory(step_directory.parent_path());
  return to;
}

}  // namespace octet::checkpoint
