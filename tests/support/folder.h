// A folder that lives as long as a test.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace octet::testing {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const;

 private:
  std::filesystem::path path_;
};

// Returns the sorted names of the entries of a folder, without those in its subfolders.
std::vector<std::string> names_in(const std::filesystem::path& folder);

void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace octet::testing
