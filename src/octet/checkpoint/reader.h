// Reads checkpoints. The mesh that reads a checkpoint may differ from the mesh that wrote it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/retry.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/ranks.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/writer.h"
#include "octet/device/device.h"

namespace octet::checkpoint {

// A checkpoint was read and is wrong: a file that its manifest names is missing or too short, or a sum differs. If a checkpoint
// cannot be read, because of the system, of a link that leads nowhere or of its later version, another Error{data} is thrown.
class Damaged : public Error {
 public:
  explicit Damaged(const std::string& message) : Error(ExitCode::data, message) {}
};

// Says what load() does if a tensor has one dtype in the checkpoint and another in memory.
enum class OtherDtype : std::uint8_t {
  refuse,
  convert,  // F64, F32 and BF16 to each other: exactly to a wider one, rounded to the nearest (ties to even) to a narrower one
};

// Only one thread may use a Reader at a time.
class Reader {
 public:
  // Opens a checkpoint and checks all of it: the manifest, each file against the manifest, and each checksum. Throws Damaged or
  // Error{data}, one line that names the file, the tensor and the value. Errors that may pass are retried for `retry_s` seconds,
  // here and in load().
  //
  // Collective: all ranks call it together. Each rank checks the manifest and a share of the data. The shares are equal in bytes
  // and follow the order of the files, so if the mesh is unchanged, a rank reads about the data that it wrote. A failure on one
  // rank is thrown on all ranks, with the number of the rank. A rank opens only the files that it checks or loads from.
  static Reader open(const std::filesystem::path& step_directory, const Ranks& ranks = {}, double retry_s = kRetryS);

  // Opens the newest checkpoint of a step before `before` that passes all checks, the same on every rank. Rank 0 moves each newer
  // checkpoint, which is damaged, to root/damaged/; on_warning gets a line that names the file, the reason and the checkpoint
  // used instead. Returns nothing if there are no checkpoints. Throws Damaged if all are damaged, and Error{data} if one cannot
  // be read: then nothing is moved. Collective. Nobody else may write or delete checkpoints during the call; rank 0 lists them.
  static std::optional<Reader> open_latest(const std::filesystem::path& root,
                                           const std::function<void(std::string_view)>& on_warning, const Ranks& ranks = {},
                                           double retry_s = kRetryS,
                                           std::int64_t before = std::numeric_limits<std::int64_t>::max());

  // Opens the checkpoint of a single rank: `part` lists only slices of files in `folder` that this rank can read. Checks all of
  // their bytes, and throws like open(). Not collective.
  static Reader of_part(std::filesystem::path folder, Manifest part);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& meta() const { return manifest_.meta; }
  const Manifest& manifest() const { return manifest_; }

  // Overwrites the entries with the values of the checkpoint, from whichever slices hold them, and waits for the stream. Reads
  // only the slices that overlap this rank's entries.
  //
  // The entries must name every tensor of the checkpoint, with an empty slice for a tensor of which this rank holds nothing.
  // Tensors that match a glob of `ignorable` may be left out. Throws one Error{data} that lists all missing and unexpected
  // tensors and all differences in shape or dtype; no entry is written then. On the meta device, only checks.
  void load(Stream& stream, std::span<const Entry> entries, const std::vector<std::string>& ignorable = {},
            OtherDtype other = OtherDtype::refuse) const;

 private:
  struct File {
    FileReader reader;
    SafetensorsHeader header;
    std::unordered_map<std::string, std::size_t> index;  // name: index in header.tensors
  };
  // The bytes of a slice in its file.
  struct Range {
    const FileReader* file = nullptr;
    std::size_t offset = 0, bytes = 0;
  };
  Reader(std::filesystem::path path, Manifest manifest, double retry_s)
      : path_(std::move(path)), manifest_(std::move(manifest)), retry_s_(retry_s) {}
  void check_share(int rank, int size) const;
  void check_entries(std::span<const Entry> entries, const std::vector<std::string>& ignorable, OtherDtype other) const;
  Range range_of(const StoredTensor& tensor, const StoredSlice& stored) const;
  void read(const Range& range, std::size_t from, std::span<std::byte> out) const;

  std::filesystem::path path_;
  Manifest manifest_;
  double retry_s_;
  mutable std::unordered_map<std::string, std::unique_ptr<File>> files_;  // files opened so far, by name
};

// Returns the meta of a checkpoint, without checking its data. Throws Error{data} if the manifest cannot be read.
nlohmann::json meta_of(const std::filesystem::path& step_directory);
// Returns the meta of the newest checkpoint in `root` whose manifest is not damaged, without checking its data. Returns an empty
// object if there is none. Throws Error{data} if `root` or a manifest cannot be read.
nlohmann::json newest_meta(const std::filesystem::path& root, double retry_s = kRetryS);

}  // namespace octet::checkpoint
