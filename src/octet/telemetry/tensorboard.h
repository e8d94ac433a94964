// Writes TensorBoard event files without a library: TFRecord frames with a masked CRC-32C around protobuf `Event` messages
// (tensorflow/core/util/event.proto, framework/summary.proto).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "octet/telemetry/append_file.h"
#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

// CRC-32C (Castagnoli) in its reflected form, as specified in RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

class TensorBoardWriter {
 public:
  // Creates a new event file in `directory`, and the directory if it does not exist. The file's name sorts after those of
  // existing event files. Its first event makes TensorBoard drop the events of older files with step > last_step; without
  // last_step, all events.
  // Every failure throws Error{internal} "PATH: reason".
  TensorBoardWriter(const std::filesystem::path& directory, std::optional<std::int64_t> last_step);

  // Writes all fields that have a tag and a value as one event.
  void write(const StepMetrics& metrics);
  void write_scalars(std::int64_t step, std::span<const std::pair<std::string, double>> scalars);
  // Calls fsync on the file and the directory.
  void sync();
  // Makes TensorBoard drop the events with step > last_step.
  void rewind(std::int64_t last_step);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_event(std::string_view event);
  AppendFile file_;
};

}  // namespace octet::telemetry
