// The memory of a running rank, and the snapshots that it has left with its supervisor: tests look at them and damage them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "octet/base/descriptor.h"

namespace octet::testing {

// Flips a bit of one byte of a file.
void flip_bit(const std::filesystem::path& file, std::uint64_t offset, int bit);

// Stops a process for as long as this lives, and reads and writes its memory.
class Stopped {
 public:
  explicit Stopped(pid_t pid);
  ~Stopped();
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  bool can_write() const { return memory_.open(); }

  // Flips a bit of the first byte wherever these bytes lie in memory that is no file's. Returns how often they do.
  int flip(std::string_view bytes, int bit);

 private:
  char state() const;

  pid_t pid_;
  Descriptor memory_;
};

// A snapshot of a rank in the memory of its supervisor.
struct HeldSnapshot {
  std::int64_t step;
  std::int64_t saved_step;     // of the newest checkpoint that had been begun
  std::filesystem::path data;  // a safetensors file, for as long as the rank lives
};
// The complete ones, newest first. Stop the rank, or they change.
std::vector<HeldSnapshot> snapshots_of(pid_t rank);

}  // namespace octet::testing
