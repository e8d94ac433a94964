#include "octet/telemetry/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <system_error>
#include <vector>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/require.h"

namespace octet::telemetry {
namespace {
constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}();

template <class Word>
void put_little_endian(std::string& out, Word word) {
  for (std::size_t i = 0; i < sizeof(Word); ++i) out.push_back(static_cast<char>((word >> (8 * i)) & 0xFF));
}

// Encodes a protocol buffer message field by field.
class Message {
 public:
  Message& varint(std::uint32_t field, std::uint64_t value) {
    key(field, 0);
    put_varint(value);
    return *this;
  }
  Message& fixed64(std::uint32_t field, double value) {
    key(field, 1);
    put_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& bytes(std::uint32_t field, std::string_view value) {
    key(field, 2);
    put_varint(value.size());
    bytes_.append(value);
    return *this;
  }
  Message& fixed32(std::uint32_t field, float value) {
    key(field, 5);
    put_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  void key(std::uint32_t field, std::uint32_t wire_type) { put_varint((field << 3) | wire_type); }
  void put_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>((value & 0x7F) | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

// event.proto: Event {wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7}
Message event_at(std::int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Message event;
  event.fixed64(1, std::chrono::duration<double>(now).count()).varint(2, static_cast<std::uint64_t>(step));
  return event;
}

// SessionLog {status = 1: START = 1}. TensorBoard drops all earlier events whose step is at least this one's.
std::string forget_from(std::int64_t step) { return event_at(step).bytes(7, Message().varint(1, 1).str()).str(); }

constexpr std::string_view kPrefix = "events.out.tfevents.";

// TensorBoard reads the files of a folder in the order of their names. Event file names start with a time in seconds.
std::filesystem::path next_path(const std::filesystem::path& directory) {
  make_folders(directory);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (const std::filesystem::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t other = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
    if (other < 9'999'999'999) seconds = std::max(seconds, other + 1);
  }
  char host[256] = "host";
  ::gethostname(host, sizeof(host) - 1);
  return directory / fmt::format("{}{:010}.{}.{}", kPrefix, seconds, host, ::getpid());
}
}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

namespace {
std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }
}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, std::optional<std::int64_t> last_step)
    : file_(next_path(directory)) {
  write_event(event_at(0).bytes(3, "brain.Event:2").str());
  rewind(last_step.value_or(-1));
}

void TensorBoardWriter::write(const StepMetrics& metrics) {
  std::vector<std::pair<std::string, double>> scalars;
  visit_fields(metrics, [&](const FieldName& name, const auto& field) {
    if (*name.tensorboard == '\0') return;
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::optional<double>>) {
      if (field) scalars.emplace_back(name.tensorboard, *field * name.tensorboard_factor);
    } else if constexpr (std::is_same_v<std::decay_t<decltype(field)>, NamedNumbers>) {
      const std::string_view tag = name.tensorboard;
      for (const auto& [key, value] : field) {
        scalars.emplace_back(std::string(tag.substr(0, tag.rfind("NAME"))) + key, value * name.tensorboard_factor);
      }
    } else {
      scalars.emplace_back(name.tensorboard, static_cast<double>(field) * name.tensorboard_factor);
    }
  });
  write_scalars(metrics.step, scalars);
}

void TensorBoardWriter::write_scalars(std::int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  // Summary {repeated Value value = 1}, Value {tag = 1, simple_value = 2}
  Message summary;
  for (const auto& [tag, value] : scalars) {
    summary.bytes(1, Message().bytes(1, tag).fixed32(2, static_cast<float>(value)).str());
  }
  write_event(event_at(step).bytes(5, summary.str()).str());
}

void TensorBoardWriter::sync() {
  file_.sync();
  sync_directory(path().parent_path());
}

void TensorBoardWriter::rewind(std::int64_t last_step) { write_event(forget_from(last_step + 1)); }

void TensorBoardWriter::write_event(std::string_view event) {
  std::string frame;
  put_little_endian(frame, static_cast<std::uint64_t>(event.size()));
  put_little_endian(frame, masked_crc(frame));
  frame.append(event);
  put_little_endian(frame, masked_crc(event));
  file_.append(frame);
}

}  // namespace octet::telemetry
