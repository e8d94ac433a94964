// Creates a folder that other processes see either complete or not at all.
#pragma once

#include <filesystem>

namespace octet {

// The caller writes files into a temporary folder next to the final path. finish() renames the temporary folder to the final
// path. If finish() was not called, the destructor deletes the temporary folder.
class NewDirectory {
 public:
  // Creates the temporary folder and missing parent folders. Removes `path` if it is an empty folder. Removes the temporary
  // folders for `path` that processes of this machine have left, if they were killed. Throws Error{config} "PATH: ..." if `path`
  // is empty, if it exists and is not an empty folder that can be removed, or if nothing can be created under this path
  // (create_output), SystemError with ExitCode::data if the system cannot say what `path` is, and Error{internal} if the
  // temporary folder cannot be created for another reason.
  explicit NewDirectory(const std::filesystem::path& path);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // The temporary folder, into which files are written before finish().
  const std::filesystem::path& path() const { return temporary_; }
  // Throws Error{config} if another process has created `path` in the meantime, and Error{internal} if the rename fails for
  // another reason.
  void finish();

 private:
  void begin();

  std::filesystem::path path_, temporary_;
  bool finished_ = false;
};

}  // namespace octet
