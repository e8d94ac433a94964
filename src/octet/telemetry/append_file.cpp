#include "octet/telemetry/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/system_call.h"

namespace octet::telemetry {

namespace {

// Whether the path does not lead to the open file any more, as after logrotate has renamed it. It still does if the folder is on
// another file system than the file: then that of the file is not mounted any more, and records are better kept where they were.
bool is_elsewhere(const std::filesystem::path& path, const struct stat& open) {
  struct stat named {};
  struct stat folder {};
  if (::stat(path.c_str(), &named) == 0) return named.st_dev == open.st_dev && named.st_ino != open.st_ino;
  const std::filesystem::path above = path.has_parent_path() ? path.parent_path() : ".";
  return errno == ENOENT && ::stat(above.c_str(), &folder) == 0 && folder.st_dev == open.st_dev;
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for a reader. Without a reader it fails with ENXIO.
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  const int error = errno;
  struct stat status {};
  const bool known = (fd_ >= 0 ? ::fstat(fd_, &status) : ::stat(path_.c_str(), &status)) == 0;
  if (known && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode) && !S_ISDIR(status.st_mode)) {
    if (fd_ >= 0) ::close(fd_);
    fail(ExitCode::internal, path_.string(), ": not a regular file. Records are written there: remove or rename it");
  }
  errno = error;
  if (fd_ < 0) fail_errno(ExitCode::internal, path_, "cannot open");
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), warned_(other.warned_) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(warned_, other.warned_);
  return *this;
}

void AppendFile::follow_name(const struct stat& open) {
  const bool renamed = open.st_nlink > 0;
  try {
    *this = AppendFile(path_);
  } catch (const Error& error) {
    if (!renamed) throw;  // nobody could read the records
    if (!std::exchange(warned_, true))
      log_warning(concat(error.what(), ". The file of this name was renamed, and records are still added to it"));
    return;
  }
  struct stat now {};
  if (::fstat(fd_, &now) != 0) fail_errno(ExitCode::internal, path_, "cannot ask for its size");
  log_warning(concat(path_.string(), renamed            ? ": was renamed; records are now added to a file of the old name"
                                     : now.st_size == 0 ? ": was removed; it is created again, without the records that it held"
                                                        : ": was replaced by another file, to which records are now added"));
}

void AppendFile::append(std::string_view bytes) {
  struct stat before {};
  if (::fstat(fd_, &before) != 0) fail_errno(ExitCode::internal, path_, "cannot ask for its size");
  if (S_ISREG(before.st_mode) && (before.st_nlink == 0 || is_elsewhere(path_, before))) {
    follow_name(before);
    if (::fstat(fd_, &before) != 0) fail_errno(ExitCode::internal, path_, "cannot ask for its size");
  }
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int number = errno;
      // An incomplete record would make the next record unreadable.
      const bool restored = written == 0 || ::ftruncate(fd_, before.st_size) == 0;
      throw SystemError(
          ExitCode::internal,
          concat(path_.string(), ": cannot write: ", std::strerror(number), restored ? "" : "; its last record is incomplete"),
          number);
    }
    written += static_cast<std::size_t>(n);
  }
}

void AppendFile::sync() {
  // A pipe or a device such as /dev/null does not support fsync and does not need it.
  const bool synced = ::fsync(fd_) == 0 || errno == EINVAL || errno == ENOTSUP;
  if (!synced) fail_errno(ExitCode::internal, path_, "cannot sync");
}

}  // namespace octet::telemetry
