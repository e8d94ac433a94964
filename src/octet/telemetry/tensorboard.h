// TensorBoard event files, written by hand: TFRecord frames with masked CRC-32C around protobuf `Event` messages
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

// CRC-32C (Castagnoli), reflected, as in RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

class TensorBoardWriter {
 public:
  // Opens a new event file in `directory` (made if absent) whose name sorts after those already there. Its first event
  // tells TensorBoard to forget every event with step > last_step that older files hold; with no last_step, all of them.
  // Every failure throws Error{internal} "PATH: reason".
  TensorBoardWriter(const std::filesystem::path& directory, std::optional<std::int64_t> last_step);

  // All fields of visit_fields with a tag and a value, as one event.
  void write(const StepMetrics& metrics);
  void write_scalars(std::int64_t step, std::span<const std::pair<std::string, double>> scalars);
  // Forgets the events with step > last_step.
  void rewind(std::int64_t last_step);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_event(std::string_view event);
  AppendFile file_;
};

}  // namespace octet::telemetry
