// A folder that appears under its name complete, or not at all.
#pragma once

#include <filesystem>

namespace octet {

// It is filled under a temporary name beside its own, and renamed in finish(). One that is not finished leaves nothing.
class NewDirectory {
 public:
  // Throws Error{config} "PATH: ..." where something other than an empty folder stands already, Error{internal} where it cannot
  // be made. Missing folders above it are made.
  explicit NewDirectory(const std::filesystem::path& path);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // Where its files go until it is finished.
  const std::filesystem::path& path() const { return temporary_; }
  // Throws Error{internal} where the name has been taken meanwhile.
  void finish();

 private:
  std::filesystem::path path_, temporary_;
  bool finished_ = false;
};

}  // namespace octet
