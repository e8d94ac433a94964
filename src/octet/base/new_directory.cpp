#include "octet/base/new_directory.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/process_identity.h"
#include "octet/base/system_call.h"

namespace octet {

namespace fs = std::filesystem;

namespace {

constexpr const char* kExists = ": exists already; remove it or give another name";

// Stands for this machine since its last start, and the process namespace: there a process id and a start name one process.
std::string here(const ProcessIdentity& me) {
  RunningChecksum sum;
  sum.update(me.boot + me.pid_namespace);
  return sum.hex();
}

// Removes the folders that killed processes of this machine have left, as far as it can. Their names start with `begin`. Folders
// of other machines stay, because nothing here tells whether their processes still write.
void remove_interrupted(const fs::path& begin, ProcessIdentity process) {
  const std::string name_begin = begin.filename().string();
  std::error_code error;  // folders that stay only take up room
  fs::directory_iterator entry(begin.has_parent_path() ? begin.parent_path() : ".", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(name_begin)) continue;
    char rest = 0;
    const int read =
        std::sscanf(name.c_str() + name_begin.size(), "%" SCNd64 "-%" SCNd64 "%c", &process.pid, &process.start_ticks, &rest);
    std::error_code ignored;
    if (read == 2 && fate_of(process) == Fate::ended) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

NewDirectory::NewDirectory(const fs::path& path) : path_(path.has_filename() ? path : path.parent_path()) {
  demand(!path_.empty(), ExitCode::config, "--output \"\": the folder to write needs a name");
  create_output([&] { begin(); });
}

void NewDirectory::begin() {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path_, error).type();  // a dangling link is in the way, too
  if (type == fs::file_type::none)
    throw SystemError(ExitCode::data, concat(path_.string(), ": ", error.message()), error.value());
  if (type != fs::file_type::not_found) {
    demand(is_folder(path_) && entries_of(path_).empty(), ExitCode::config, path_.string(), kExists);
    // finish() could not replace a working directory, a mount point or a link.
    if (::rmdir(path_.c_str()) != 0) {
      fail(ExitCode::config, path_.string(), ": exists already, and this empty folder cannot be replaced (", std::strerror(errno),
           "); give the name of a new one, such as ", (path_ / "model").string());
    }
  }
  const ProcessIdentity me = ProcessIdentity::mine();
  const std::string begin = concat(path_.string(), ".tmp-", here(me), "-");
  remove_interrupted(begin, me);
  temporary_ = concat(begin, me.pid, "-", me.start_ticks);
  make_folders(temporary_);
}

NewDirectory::~NewDirectory() {
  if (finished_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void NewDirectory::finish() {
  sync_directory(temporary_);
  // rename() replaces an empty folder that was made meanwhile, but fails if the folder has files.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const bool taken = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
    if (taken) fail(ExitCode::config, path_.string(), kExists);
    fail_errno(ExitCode::internal, path_, "cannot rename");
  }
  finished_ = true;
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

}  // namespace octet
