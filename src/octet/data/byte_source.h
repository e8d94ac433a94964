// The bytes of one input: a file as it lies, a file unpacked (.gz, .zst), or standard input. Constant memory.
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
  // Fills `to` up to `size` bytes; fewer only at the end. Throws Error{data} with the reason alone ("damaged gzip data"): the
  // caller knows the file and the line. Throws Error{interrupted} when it is asked to stop.
  virtual std::size_t read(char* to, std::size_t size) = 0;
  // Bytes of the file, packed as it is, that were read so far.
  virtual std::int64_t consumed() const = 0;
};

// "-" is standard input, as it comes. Names that end in .gz and .zst (any case) are unpacked: several members or frames behind
// each other are one input. Throws Error{data} with the reason alone.
// `stop` asks standard input to, which may have nothing to read for ever.
std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path, const std::atomic<bool>* stop = nullptr);

// ".gz" of "a.jsonl.GZ": the last extension, in lower case.
std::string lower_extension(const std::filesystem::path& path);
// The name without .gz or .zst.
std::filesystem::path unpacked_name(const std::filesystem::path& path);

}  // namespace octet::data
