#include "octet/base/directory.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <system_error>

#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// Returns the mode of the file or folder with this name, or 0 if there is none.
mode_t mode_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return info.st_mode;
  // A name that is too long for the file system cannot exist.
  if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG) fail_errno(ExitCode::data, path, "");
  return 0;
}

// Returns a message if `path` is a link whose target does not exist, otherwise "".
std::string lost_link(const fs::path& path) {
  std::error_code is_no_link;
  const fs::path target = fs::read_symlink(path, is_no_link);
  if (is_no_link || ::access(path.c_str(), F_OK) == 0 || errno != ENOENT) return "";
  return concat("a link that leads nowhere, to ", target.string(), ". Is a file system not mounted? Otherwise remove the link");
}

}  // namespace

bool path_exists(const fs::path& path) { return mode_of(path) != 0; }
bool is_file(const fs::path& path) { return S_ISREG(mode_of(path)); }
bool is_folder(const fs::path& path) { return S_ISDIR(mode_of(path)); }

void demand_not_lost(const fs::path& path) {
  constexpr int kNoNumber = 0;  // with ENOENT, callers would think that the file is absent
  if (const std::string lost = lost_link(path); !lost.empty())
    throw SystemError(ExitCode::data, concat(path.string(), ": ", lost), kNoNumber);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) fail_errno(ExitCode::data, folder, "cannot list");
  std::vector<fs::path> result;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(open.get());
    if (!entry && errno != 0) fail_errno(ExitCode::data, folder, "cannot list");
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") result.push_back(folder / name);
  }
  std::sort(result.begin(), result.end());
  return result;
}

fs::path true_path(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(path, error);
  if (error) throw SystemError(ExitCode::data, concat(path.string(), ": ", error.message()), error.value());
  return result;
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  const std::string lost = lost_link(folder);
  throw SystemError(ExitCode::internal, concat(folder.string(), ": ", lost.empty() ? "cannot create: " + error.message() : lost),
                    error.value());
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw SystemError(ExitCode::internal, concat(path.string(), ": cannot remove: ", error.message()), error.value());
}

fs::path temporary_folder() {
  const char* const named = std::getenv("TMPDIR");
  const fs::path folder = named && *named ? named : "/tmp";
  demand(is_folder(folder), ExitCode::config, "TMPDIR=", folder.string(),
         ": not a folder; set TMPDIR to a folder for temporary files");
  return folder;
}

}  // namespace octet
