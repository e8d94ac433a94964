// File access: reading whole files or parts of them, memory maps, writing, locks, and atomic replacement.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace octet {

// Opens a file to read and returns its descriptor. Only regular files are opened: a pipe or a device would make the program wait
// for ever. Throws Error{data} "PATH: reason"; SystemError if the system refuses.
int open_regular(const std::filesystem::path& path);

// Returns the whole file. If another process shortens the file meanwhile, as a run shortens its metrics when it goes back,
// returns what is left of it. Throws Error{data} "PATH: reason"; SystemError if the system refuses.
std::string read_file(const std::filesystem::path& path);

// A read-only memory map of a whole file; an empty file gives an empty span. The constructor throws Error{data} "PATH: reason".
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

// Reads chosen ranges of a file without mapping it, so nothing stays in this process's memory.
class FileReader {
 public:
  // Throws Error{data} "PATH: reason".
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::size_t size() const { return size_; }  // the file's size when it was opened
  // Fills `out` with the bytes from `offset` on. Any thread may call it. Throws Error{data} "PATH: reason", also if the file has
  // become too short since it was opened.
  void read_at(std::size_t offset, std::span<std::byte> out) const;
  // Like read_at(), but stops at the end of the file. Returns the number of bytes read.
  std::size_t read_up_to(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  std::size_t size_ = 0;
  int fd_ = -1;
};

// Writes a file from start to end through a buffer. Every failure, including a full disk, throws Error{internal} "PATH: reason".
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);  // creates or empties the file
  // Opens an existing file, truncates it to its first `keep` bytes and writes after them.
  FileWriter(const std::filesystem::path& path, std::size_t keep);
  ~FileWriter();  // closes the file without writing what is still in the buffer
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Overwrites bytes at `offset` without moving the write position. A
  // gap between the end of the file and `offset` reads as zeros.
  void write_at(std::size_t offset, std::span<const std::byte> bytes);
  // Truncates the file to `size` bytes. `size` must not exceed position().
  void truncate(std::size_t size);
  std::size_t position() const { return position_; }
  // Writes the buffer to the operating system. The data then survive a crash of this program, but not a power failure.
  void flush();
  // Flushes the buffer, calls fsync and closes the file.
  void finish();

 private:
  std::filesystem::path path_;
  std::string buffer_;
  std::size_t position_ = 0;  // including what is in the buffer
  int fd_ = -1;
};

// An exclusive lock among the processes of this machine, held until destruction. The file `path` serves only as the lock; the
// destructor removes it. If a process is killed, its lock ends even though the file remains.
class FileLock {
 public:
  // Throws Error{config} "WHAT: another process is writing this" if another process holds the lock.
  FileLock(const std::filesystem::path& path, std::string_view what);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Returns the name that a new file must get to take the place of `path`: `path` itself, or if it is a symbolic link the file that the
// link leads to. Throws Error{config} "PATH: not a regular file but a device" if something other than a regular file is there, because
// a rename would destroy it.
std::filesystem::path file_to_replace(const std::filesystem::path& path);

// Writes a temporary file in the same folder, calls fsync and renames it to file_to_replace(path). Readers see either the old or the
// new content.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);
// Removes the temporary files that killed writes to `path` have left, as far as the system allows. Nobody may be writing `path`
// now.
void remove_interrupted_writes(const std::filesystem::path& path);
// Does the same for every file in a folder.
void remove_interrupted_writes_in(const std::filesystem::path& folder);

// Creates a file that appears with its content. Returns false if `path` exists already, and leaves that file alone. Needs a
// file system with hard links. Call sync_directory() if the name must survive a power failure.
bool create_file_atomically(const std::filesystem::path& path, std::string_view text);

// Like write_file_atomically(), for an output that the user has named (create_output).
void write_output(const std::filesystem::path& path, std::string_view text);

// Calls fsync on a folder, so that a rename in it survives a power failure. Throws Error{internal} with path and reason if the folder
// cannot be opened or the disk refuses.
void sync_directory(const std::filesystem::path& path);

}  // namespace octet
