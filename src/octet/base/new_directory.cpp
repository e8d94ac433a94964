#include "octet/base/new_directory.h"

#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/system_call.h"

namespace octet {

namespace fs = std::filesystem;

NewDirectory::NewDirectory(const fs::path& path) : path_(path.has_filename() ? path : path.parent_path()) {
  create_output([&] { begin(); });
}

void NewDirectory::begin() {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path_, error).type();  // a dangling link is in the way, too
  if (type == fs::file_type::none)
    throw SystemError(ExitCode::data, concat(path_.string(), ": ", error.message()), error.value());
  const bool free = type == fs::file_type::not_found || (is_folder(path_) && entries_of(path_).empty());
  demand(free, ExitCode::config, path_.string(), ": exists already; remove it or give another name");
  temporary_ = path_.string() + concat(".tmp-", ::getpid());
  make_folders(temporary_);
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
