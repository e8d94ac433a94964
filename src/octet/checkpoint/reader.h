// Reads checkpoints, whatever mesh wrote them and whatever mesh reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/ranks.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/writer.h"
#include "octet/device/device.h"

namespace octet::checkpoint {

// Not for use by several threads at once.
class Reader {
 public:
  // One checkpoint. Everything is checked: the manifest, each file against it, each sum. Throws Error{data}, one line with the
  // file, the tensor and the value.
  // Many ranks call it together. Each checks the manifest, and a share of the files and sums, cut by bytes in the order of the
  // files, so that the ranks of the mesh that wrote them read about their own; what one finds is thrown on all, with its number.
  // Files that a rank neither checks nor loads from stay closed there.
  static Reader open(const std::filesystem::path& step_directory, const Ranks& ranks = {});

  // The newest one that passes, the same on every rank. For each that does not, on_warning gets one line that says which file,
  // why, and what is used in its place. Empty when there is no checkpoint at all; when none passes, Error{data}. Many ranks call
  // it together, and nobody may write or delete checkpoints meanwhile: rank 0 says which there are.
  static std::optional<Reader> open_latest(const std::filesystem::path& root,
                                           const std::function<void(std::string_view)>& on_warning, const Ranks& ranks = {});

  const std::filesystem::path& path() const { return path_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& meta() const { return manifest_.meta; }
  const Manifest& manifest() const { return manifest_; }

  // Fills the entries from whatever slices there are; waits for the queue. Only what this rank's entries have elements of is
  // read. Tensors that the checkpoint lacks or has besides, and shapes and dtypes that differ, are all said in one Error{data};
  // nothing is written then. So a rank names every tensor, with an empty slice of those that it holds nothing of. Tensors of the
  // checkpoint that match a glob of `ignorable` are passed over. On the meta device only the checks are made.
  void load(Queue& queue, std::span<const Entry> entries, const std::vector<std::string>& ignorable = {}) const;

 private:
  Reader(std::filesystem::path path, Manifest manifest) : path_(std::move(path)), manifest_(std::move(manifest)) {}
  void check_share(int rank, int size) const;
  void check_entries(std::span<const Entry> entries, const std::vector<std::string>& ignorable) const;
  std::span<const std::byte> bytes(const StoredTensor& tensor, const StoredSlice& stored) const;

  std::filesystem::path path_;
  Manifest manifest_;
  mutable std::unordered_map<std::string, SafetensorsFile> files_;  // opened so far
};

// The meta of the newest checkpoint of a root whose manifest can be read, without a look at what else it holds; an empty object
// where there is none.
nlohmann::json newest_meta(const std::filesystem::path& root);

}  // namespace octet::checkpoint
