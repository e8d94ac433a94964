// Files: whole reads, pieces, memory maps, and writes that are complete or absent.
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

// A file that is read in pieces: what is not asked for is not read, and nothing stays in memory.
class FileReader {
 public:
  // Throws Error{data} "PATH: reason".
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::size_t size() const { return size_; }  // when it was opened
  // Fills `out` with the bytes from `offset` on, from any thread. Throws Error{data} "PATH: reason", when the file has become
  // shorter, too.
  void read_at(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  std::size_t size_ = 0;
  int fd_ = -1;
};

// A new file, written in order through a buffer. Every failure (a full disk included) throws Error{internal} "PATH: reason".
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  // Goes on with a file that exists, behind its first `keep` bytes, which are all that stays of it.
  FileWriter(const std::filesystem::path& path, std::size_t keep);
  ~FileWriter();  // closes; a writer not finished leaves its file as it is
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Overwrites bytes at `offset`; beyond the end it leaves a gap of zeros before them. The position stays.
  void write_at(std::size_t offset, std::span<const std::byte> bytes);
  // Takes back everything behind the first `size` bytes, of at least that many.
  void truncate(std::size_t size);
  std::size_t position() const { return position_; }
  // Hands all of it to the system: it outlives this program, but not a power cut.
  void flush();
  // Flushes, fsyncs and closes.
  void finish();

 private:
  std::filesystem::path path_;
  std::string buffer_;
  std::size_t position_ = 0;  // the buffer included
  int fd_ = -1;
};

// The right to write something, among all processes of this machine, for as long as this lives: a file at `path` that is there
// for nothing else and is removed at the end. One that a killed process left is nobody's.
class FileLock {
 public:
  // Throws Error{config} "WHAT: another process is writing this".
  FileLock(const std::filesystem::path& path, std::string_view what);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Writes `path` by way of a temporary name in the same folder, fsync and rename: readers see the old file or the new one.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// fsync of a folder, so that a rename in it survives a power cut. Throws Error{internal} "PATH: reason" when the disk refuses.
void sync_directory(const std::filesystem::path& path);

}  // namespace octet
