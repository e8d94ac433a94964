#include "octet/data/output_watch.h"

#include <algorithm>
#include <utility>

#include "octet/base/log.h"
#include "octet/telemetry/format.h"

namespace octet::data {
namespace {

using telemetry::format_bytes, telemetry::format_significant;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
// Text becomes a corpus of twice its size at most, and compressed text one of about ten times.
constexpr std::int64_t kManyTimes = 20, kWorthSaying = 64 * kMiB;
// The space that is left free on the disk: a share of the disk, within bounds.
constexpr std::uint64_t kShare = 100, kLeastFree = 16 * kMiB, kMostFree = 1024 * kMiB;

OutputWatch::Space space_of(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder.empty() ? "." : folder, error);
  return error ? OutputWatch::Space{} : OutputWatch::Space{.capacity = space.capacity, .available = space.available};
}

std::string bytes(std::int64_t count) { return format_bytes(static_cast<std::uint64_t>(count)); }

}  // namespace

std::int64_t expected_bytes(std::int64_t output_bytes, std::int64_t input_done, std::int64_t input_total) {
  if (input_done <= 0) return 0;
  return static_cast<std::int64_t>(static_cast<double>(output_bytes) * static_cast<double>(input_total) /
                                   static_cast<double>(input_done));
}

OutputWatch::OutputWatch(Options options) : options_(std::move(options)) {
  if (!options_.space) options_.space = [folder = options_.output.parent_path()] { return space_of(folder); };
}

std::optional<OutputWatch::Stop> OutputWatch::look_ahead(std::int64_t output_bytes) const {
  if (options_.max_bytes == 0 || output_bytes <= options_.max_bytes) return std::nullopt;
  return Stop{ExitCode::does_not_fit,
              concat("the corpus would be larger than --max-output = ", telemetry::format_count(options_.max_bytes, "byte"))};
}

std::optional<OutputWatch::Stop> OutputWatch::look(std::int64_t output_bytes, std::int64_t unwritten, std::int64_t input_done,
                                                   std::int64_t input_total) {
  const std::string name = options_.output.string();
  const std::int64_t expected = expected_bytes(output_bytes, input_done, input_total);
  if (!said_large_ && input_done > 0 && output_bytes >= kWorthSaying && output_bytes / input_done >= kManyTimes) {
    said_large_ = true;
    log_warning(concat(name, ": the corpus is ",
                       format_significant(static_cast<double>(output_bytes) / static_cast<double>(input_done), 3),
                       " times as large as its input: ", bytes(output_bytes), " so far",
                       expected > output_bytes ? ", " + bytes(expected) + " expected" : "", ". --max-output SIZE stops it"));
  }
  const Space space = options_.space();
  if (space.capacity == 0) return std::nullopt;
  const std::uint64_t reserve = std::clamp(space.capacity / kShare, kLeastFree, kMostFree);
  const std::uint64_t needed = reserve + static_cast<std::uint64_t>(std::max<std::int64_t>(unwritten, 0));
  if (space.available < needed)
    return Stop{ExitCode::internal, concat("only ", format_bytes(space.available), " are free on its disk, and ",
                                           format_bytes(needed), " are needed to go on")};
  if (!said_full_ && expected - output_bytes > static_cast<std::int64_t>(space.available)) {
    said_full_ = true;
    log_warning(concat(name, ": the corpus may not fit: ", bytes(expected), " expected, ", bytes(output_bytes), " written, ",
                       format_bytes(space.available), " free. The preparation stops before the disk is full"));
  }
  return std::nullopt;
}

}  // namespace octet::data
