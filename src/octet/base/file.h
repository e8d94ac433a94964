// Files: whole reads, memory maps, and writes that are complete or absent.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace octet {

// The whole file. Throws Error{data} "PATH: reason".
std::string read_file(const std::filesystem::path& path);

// A read-only map of a whole file; empty files map to an empty span. Throws Error{data} "PATH: reason".
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A new file, written in order through a buffer. Every failure (a full disk included) throws Error{internal} "PATH: reason".
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();  // closes; a writer not finished leaves its file as it is
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Overwrites bytes already written at `offset`.
  void write_at(std::size_t offset, std::span<const std::byte> bytes);
  std::size_t position() const { return position_; }
  // Flushes, fsyncs and closes.
  void finish();

 private:
  void flush();
  std::filesystem::path path_;
  std::string buffer_;
  std::size_t position_ = 0;
  int fd_ = -1;
};

// Writes `path` by way of a temporary name in the same folder, fsync and rename: readers see the old file or the new one.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// fsync of a folder, so that a rename in it survives a power cut.
void sync_directory(const std::filesystem::path& path);

}  // namespace octet
