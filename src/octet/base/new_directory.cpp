#include "octet/base/new_directory.h"

#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "octet/base/file.h"
#include "octet/base/system_call.h"

namespace octet {

namespace fs = std::filesystem;

NewDirectory::NewDirectory(const fs::path& path) : path_(path.has_filename() ? path : path.parent_path()) {
  std::error_code error;
  const bool free =
      !fs::exists(fs::symlink_status(path_, error)) || (fs::is_directory(path_, error) && fs::is_empty(path_, error));
  demand(free, ExitCode::config, path_.string(), ": exists already; remove it or give another name");
  temporary_ = path_.string() + concat(".tmp-", ::getpid());
  fs::create_directories(temporary_, error);
  demand(!error, ExitCode::internal, temporary_.string(), ": cannot create: ", error.message());
}

NewDirectory::~NewDirectory() {
  if (finished_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void NewDirectory::finish() {
  sync_directory(temporary_);
  // rename() replaces an empty folder but fails if the folder has files.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno(ExitCode::internal, path_, "cannot rename");
  finished_ = true;
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

}  // namespace octet
