// The hash XXH3 with seed 0, 64 or 128 bits wide, of one block of bytes or of a sequence of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace octet {

class FileReader;

std::uint64_t checksum(std::span<const std::byte> bytes);

struct Checksum128 {
  std::uint64_t high = 0, low = 0;
  bool operator==(const Checksum128&) const = default;
};

class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum& other);
  RunningChecksum& operator=(const RunningChecksum& other);

  void reset();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  // The XXH3-64 hash of all bytes since construction or the last reset. hex() returns it as 16 hexadecimal digits.
  std::uint64_t value() const;
  std::string hex() const;
  // The XXH3-128 hash of the same bytes.
  Checksum128 wide() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns RunningChecksum::hex() of a whole file. Reads the file in pieces, so that memory does not grow with it, and calls
// `after_piece` after each.
std::string checksum_of(const FileReader& file, const std::function<void()>& after_piece = {});

}  // namespace octet
