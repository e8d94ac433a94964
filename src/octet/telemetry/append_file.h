// A file to which whole records are appended.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string_view>

namespace octet::telemetry {

// Every failure, including a full disk, throws Error{internal} "PATH: reason".
class AppendFile {
 public:
  // Opens the file for appending and creates it if it does not exist.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  // Appends all of `bytes`. If a write fails, the file is truncated to its old size, so that it holds no incomplete record. If
  // the file was removed, renamed or replaced, the file that now has this name is opened or created, with a warning. If
  // that fails and the open file still has a name, it gets the bytes, with a warning.
  void append(std::string_view bytes);
  // Calls fsync: the records then survive a power failure.
  void sync();
  const std::filesystem::path& path() const { return path_; }

 private:
  // Opens the file that now has the name of `open`, which is the state of the open file.
  void follow_name(const struct stat& open);

  std::filesystem::path path_;
  int fd_ = -1;
  bool warned_ = false;  // that the file of this name cannot be opened
};

}  // namespace octet::telemetry
