// Watches the size of a corpus while it is prepared: a few megabytes of compressed text may become terabytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "octet/base/require.h"

namespace octet::data {

// Returns the expected size of the finished corpus in bytes, extrapolated from the input done so far; 0 as long as nothing is
// done.
std::int64_t expected_bytes(std::int64_t output_bytes, std::int64_t input_done, std::int64_t input_total);

class OutputWatch {
 public:
  struct Space {
    std::uint64_t capacity = 0, available = 0;  // bytes of the file system of the output; capacity 0: unknown
  };
  struct Options {
    std::filesystem::path output;       // prefix of the corpus
    std::int64_t max_bytes = 0;         // of the corpus; 0: no limit
    std::function<Space()> space = {};  // default: asks the file system
  };
  explicit OutputWatch(Options options);

  struct Stop {
    ExitCode code;
    std::string why;  // "the corpus would be larger than --max-output = ..."
  };
  // Returns why the preparation must stop before the corpus has this size, or nothing.
  std::optional<Stop> look_ahead(std::int64_t output_bytes) const;
  // Returns why the preparation must stop here, or nothing. `unwritten` bytes of the output are not on the disk yet. If
  // `input_total` is 0, it is unknown. Warns once if the corpus is far larger than its input, and once if the disk has no room
  // for its expected size.
  std::optional<Stop> look(std::int64_t output_bytes, std::int64_t unwritten, std::int64_t input_done, std::int64_t input_total);

 private:
  Options options_;
  bool said_large_ = false, said_full_ = false;
};

}  // namespace octet::data
