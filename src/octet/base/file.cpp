#include "octet/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "octet/base/bus_error.h"
#include "octet/base/system_call.h"

namespace octet {
namespace {
constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::string_view kMark = ".tmp-";  // of temporary files and folders; numbers follow

std::filesystem::path temporary_for(const std::filesystem::path& path) {
  // Processes on two hosts may have the same id, so a random number follows it.
  return concat(path.string(), kMark, ::getpid(), "-", std::random_device{}());
}

// Returns the name before the mark of a temporary file or folder, or nothing for any other name. `numbers` lists the characters
// that may follow the mark.
std::optional<std::string_view> name_before_mark(std::string_view name, const char* numbers) {
  const std::size_t mark = name.rfind(kMark);
  const bool is_temporary =
      mark != std::string_view::npos && name.find_first_not_of(numbers, mark + kMark.size()) == std::string_view::npos;
  return is_temporary ? std::optional(name.substr(0, mark)) : std::nullopt;
}

// Returns the path that a user knows, for messages: with the final names of temporary files and folders.
std::filesystem::path final_path(const std::filesystem::path& path) {
  std::filesystem::path result;
  for (const std::filesystem::path& part : path) {
    const std::string name = part.string();
    result /= name_before_mark(name, "0123456789abcdef-").value_or(name);
  }
  return result;
}

// Removes the folder's temporary files that were meant to become files whose names `removes` accepts.
void remove_temporaries(const std::filesystem::path& folder, const std::function<bool(std::string_view file)>& removes) {
  std::error_code error;  // files that stay only take up room
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::optional<std::string_view> file = name_before_mark(name, "0123456789-");
    std::error_code ignored;
    if (file && removes(*file)) std::filesystem::remove(entry->path(), ignored);
  }
}

// Writes all bytes or throws.
void write_all(int fd, const char* data, std::size_t size, const std::filesystem::path& path) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_errno(ExitCode::internal, path, "cannot write");
    data += n;
    size -= static_cast<std::size_t>(n);
  }
}

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

// Opens a regular file and returns its descriptor and size.
std::pair<int, std::size_t> open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe would wait for a writer, for ever. It changes nothing about regular files.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  // Another process, such as a file server, has a lease on this regular file and must be given the time to end it.
  if (fd < 0 && errno == EWOULDBLOCK) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // A socket cannot be opened.
  if (fd < 0 && errno == ENXIO) fail(ExitCode::data, path.string(), ": not a regular file but a socket or device");
  if (fd < 0) fail_errno(ExitCode::data, path, "");
  struct stat info {};
  const int error = ::fstat(fd, &info) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    errno = error;
    if (error != 0) fail_errno(ExitCode::data, path, "");
    fail(ExitCode::data, path.string(), ": not a regular file but ", kind_of(info.st_mode));
  }
  return {fd, static_cast<std::size_t>(info.st_size)};
}
}  // namespace

int open_regular(const std::filesystem::path& path) { return open_to_read(path).first; }

std::string read_file(const std::filesystem::path& path) {
  const FileReader file(path);
  std::string text(file.size(), '\0');
  text.resize(file.read_up_to(0, std::as_writable_bytes(std::span(text))));
  return text;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto [fd, size] = open_to_read(path);
  size_ = size;
  if (size_ > 0) {
    void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    errno = error;
    if (map == MAP_FAILED) fail_errno(ExitCode::data, path, "cannot map");
    data_ = static_cast<const std::byte*>(map);
    watch_mapping(data_, size_, path_);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileReader::FileReader(const std::filesystem::path& path) : path_(path) { std::tie(fd_, size_) = open_to_read(path); }

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), size_(std::exchange(other.size_, 0)), fd_(std::exchange(other.fd_, -1)) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

std::size_t FileReader::read_up_to(std::size_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(ExitCode::data, path_, "cannot read");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void FileReader::read_at(std::size_t offset, std::span<std::byte> out) const {
  if (read_up_to(offset, out) == out.size()) return;
  struct stat now {};
  if (::fstat(fd_, &now) != 0) fail_errno(ExitCode::data, path_, "cannot read");
  const auto bytes = static_cast<std::size_t>(now.st_size);
  fail(ExitCode::data, path_.string(), ": ends at byte ", bytes, " of ", size_,
       bytes < size_ ? "; it has become shorter since it was opened" : "");
}

FileWriter::FileWriter(const std::filesystem::path& path) : path_(final_path(path)) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_errno(ExitCode::internal, path_, "cannot create");
  buffer_.reserve(kBufferBytes);
}

FileWriter::FileWriter(const std::filesystem::path& path, std::size_t keep) : path_(final_path(path)), position_(keep) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) fail_errno(ExitCode::internal, path_, "cannot open");
  if (::ftruncate(fd_, static_cast<off_t>(keep)) != 0 || ::lseek(fd_, 0, SEEK_END) < 0) {
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    errno = error;
    fail_errno(ExitCode::internal, path_, "cannot cut");
  }
  buffer_.reserve(kBufferBytes);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  position_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    write_all(fd_, reinterpret_cast<const char*>(bytes.data()), bytes.size(), path_);
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void FileWriter::write_at(std::size_t offset, std::span<const std::byte> bytes) {
  flush();
  const char* data = reinterpret_cast<const char*>(bytes.data());
  std::size_t size = bytes.size();
  while (size > 0) {
    const ssize_t n = ::pwrite(fd_, data, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_errno(ExitCode::internal, path_, "cannot write");
    data += n;
    offset += static_cast<std::size_t>(n);
    size -= static_cast<std::size_t>(n);
  }
}

void FileWriter::truncate(std::size_t size) {
  require(size <= position_, "file writer: ", size, " bytes of ", position_);
  const std::size_t written = position_ - buffer_.size();
  if (size >= written) {
    buffer_.resize(size - written);
  } else {
    buffer_.clear();
    const bool cut = ::ftruncate(fd_, static_cast<off_t>(size)) == 0 && ::lseek(fd_, static_cast<off_t>(size), SEEK_SET) >= 0;
    if (!cut) fail_errno(ExitCode::internal, path_, "cannot cut");
  }
  position_ = size;
}

void FileWriter::flush() {
  write_all(fd_, buffer_.data(), buffer_.size(), path_);
  buffer_.clear();
}

void FileWriter::finish() {
  flush();
  if (::fsync(fd_) != 0) fail_errno(ExitCode::internal, path_, "cannot flush to disk");
  if (::close(std::exchange(fd_, -1)) != 0) fail_errno(ExitCode::internal, path_, "cannot close");
}

FileLock::FileLock(const std::filesystem::path& path, std::string_view what) : path_(path) {
  for (;;) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail_errno(ExitCode::internal, path, "cannot create");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int why = errno;
      ::close(std::exchange(fd_, -1));
      demand(why != EWOULDBLOCK, ExitCode::config, what, ": another process is writing this");
      fail(ExitCode::internal, path.string(), ": cannot lock: ", std::strerror(why));
    }
    // The previous holder of the lock may have removed the file since it was opened here. Then the lock is on a file without a
    // name.
    struct stat locked {}, named {};
    const bool same = ::fstat(fd_, &locked) == 0 && ::stat(path.c_str(), &named) == 0 && locked.st_ino == named.st_ino &&
                      locked.st_dev == named.st_dev;
    if (same) return;
    ::close(std::exchange(fd_, -1));
  }
}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());  // while the lock is held; afterwards the file may be another process's
  ::close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept : path_(other.path_), fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

std::filesystem::path file_to_replace(const std::filesystem::path& path) {
  struct stat info {};
  // A path that cannot be examined cannot be written either, and the error of the write says why.
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    fail(ExitCode::config, path.string(), ": not a regular file but ", kind_of(info.st_mode));
  }
  constexpr int kMostLinks = 40;  // as the kernel follows them
  std::filesystem::path target = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code is_no_link;
    const std::filesystem::path next = std::filesystem::read_symlink(target, is_no_link);
    if (is_no_link) break;
    target = target.parent_path() / next;
  }
  return target;
}

void write_file_atomically(const std::filesystem::path& name, std::string_view text) {
  const std::filesystem::path path = file_to_replace(name), temporary = temporary_for(path);
  try {
    FileWriter writer(temporary);
    writer.write(text);
    writer.finish();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_errno(ExitCode::internal, path, "cannot rename");
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

void remove_interrupted_writes(const std::filesystem::path& name) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::is_symlink(name, error) ? std::filesystem::weakly_canonical(name, error) : name;
  const std::string file = path.filename().string();
  remove_temporaries(path.has_parent_path() ? path.parent_path() : ".", [&](std::string_view of) { return of == file; });
}

void remove_interrupted_writes_in(const std::filesystem::path& folder) {
  remove_temporaries(folder, [](std::string_view) { return true; });
}

bool create_file_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temporary = temporary_for(path);
  bool created = false;
  try {
    FileWriter writer(temporary);
    writer.write(text);
    writer.finish();
    created = ::link(temporary.c_str(), path.c_str()) == 0;
    if (!created && errno != EEXIST) fail_errno(ExitCode::internal, path, "cannot link");
    struct stat info {};
    // A file server may have made the link although its answer was lost, and then find that it is there.
    if (!created) created = ::stat(temporary.c_str(), &info) == 0 && info.st_nlink > 1;
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  return created;
}

void write_output(const std::filesystem::path& path, std::string_view text) {
  create_output([&] { write_file_atomically(path, text); });
}

void sync_directory(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno(ExitCode::internal, path, "cannot open this folder to flush it to disk");
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // File systems that cannot flush a folder say so in these words.
  errno = error;
  if (error != 0 && error != EINVAL && error != ENOTSUP) fail_errno(ExitCode::internal, path, "cannot flush this folder to disk");
}

}  // namespace octet
