// A file that grows by whole records.
#pragma once

#include <filesystem>
#include <string_view>

namespace octet::telemetry {

// Every failure (a full disk included) throws Error{internal} "PATH: reason".
class AppendFile {
 public:
  // Opens for appending; made if absent.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  // All of `bytes` or, after a failure, none.
  void append(std::string_view bytes);
  void sync();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace octet::telemetry
