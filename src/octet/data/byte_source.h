// Reads the bytes of one input: a plain file, a compressed file (.gz, .zst), which it unpacks, or standard input. Memory does not
// grow with the size of the input.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace octet::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Writes the next `size` unpacked bytes to `to` and returns their number, which is less than `size` only at the end of the input.
  // Throws Error{data} with the reason only ("damaged gzip data"): the caller adds the file and the line. Throws
  // Error{interrupted} when `stop` of open_source() becomes true.
  virtual std::size_t read(char* to, std::size_t size) = 0;
  // Bytes of the file read so far; compressed bytes if the file is compressed.
  virtual std::int64_t consumed() const = 0;
};

// Opens `path`. "-" means standard input, which is never unpacked. A name that ends in .gz or .zst, in upper or lower case, is
// unpacked; concatenated gzip members and concatenated zstd frames count as one input. Throws Error{data} with the reason only.
// `stop` interrupts a read from standard input, which could otherwise wait for ever. Files ignore it.
std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path, const std::atomic<bool>* stop = nullptr);

// The last extension of `path` in lower case: ".gz" for "a.jsonl.GZ".
std::string lower_extension(const std::filesystem::path& path);
// `path` without its .gz or .zst.
std::filesystem::path unpacked_name(const std::filesystem::path& path);

}  // namespace octet::data
