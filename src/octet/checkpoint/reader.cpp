#include "octet/checkpoint/reader.h"

#include <algorithm>
#include <memory>

#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/base/checksum.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {

Reader Reader::open(const std::filesystem::path& step_directory) {
  const std::filesystem::path path = step_directory / kManifestName;
  Reader reader(step_directory, parse_manifest(read_file(path), path.string()));
  reader.open_files();
  reader.check_sums();
  return reader;
}

std::optional<Reader> Reader::open_latest(const std::filesystem::path& root,
                                          const std::function<void(std::string_view)>& on_warning) {
  std::vector<std::string> reasons;
  for (const StepDirectory& candidate : find_checkpoints(root)) {
    try {
      Reader reader = open(candidate.path);
      for (const std::string& reason : reasons) on_warning(concat(reason, "; using ", candidate.path.string(), " in its place"));
      return reader;
    } catch (const Error& error) {
      reasons.emplace_back(error.what());
    }
  }
  if (reasons.empty()) return std::nullopt;
  std::string all;
  for (const std::string& reason : reasons) all += (all.empty() ? "" : "; ") + reason;
  fail(ExitCode::data, root.string(), ": no checkpoint of ", reasons.size(), " can be read: ", all);
}

std::span<const std::byte> Reader::bytes(const StoredSlice& stored) const {
  const SafetensorsFile& file = files_.at(stored.file);
  return file.bytes(*file.find(stored.name));
}

void Reader::open_files() {
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const StoredSlice& stored : tensor.slices) {
      const std::filesystem::path path = path_ / stored.file;
      auto found = files_.find(stored.file);
      if (found == files_.end()) found = files_.emplace(stored.file, SafetensorsFile::open(path)).first;
      const TensorInfo* info = found->second.find(stored.name);
      demand(info != nullptr, ExitCode::data, path.string(), ": no tensor ", in_quotes(stored.name),
             ", which the manifest names");
      const Shape shape = stored_shape(stored.slice);
      bool fits = info->dtype == tensor.dtype && info->dims.size() == static_cast<std::size_t>(shape.rank());
      for (int d = 0; fits && d < shape.rank(); ++d) fits = info->dims[static_cast<std::size_t>(d)] == shape[d];
      demand(fits, ExitCode::data, path.string(), ": tensor ", in_quotes(stored.name), " is ", info->dtype_name, " ",
             info->shape_text(), ", the manifest says ", name_of(tensor.dtype), " ", shape);
    }
  }
}

void Reader::check_sums() const {
  std::vector<const StoredSlice*> slices;
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const StoredSlice& stored : tensor.slices) slices.push_back(&stored);
  }
  std::vector<std::uint64_t> sums(slices.size());
  parallel_for(static_cast<std::int64_t>(slices.size()), [&](std::int64_t i) {
    const auto k = static_cast<std::size_t>(i);
    sums[k] = checksum(bytes(*slices[k]));
  });
  for (std::size_t k = 0; k < slices.size(); ++k) {
    demand(sums[k] == slices[k]->sum, ExitCode::data, (path_ / slices[k]->file).string(), ": tensor ", in_quotes(slices[k]->name),
           ": its bytes are damaged (XXH3 sum ", sums[k], ", the manifest says ", slices[k]->sum, ")");
  }
}

void Reader::check_entries(std::span<const Entry> entries, const std::vector<std::string>& ignorable) const {
  Mismatch mismatch;
  std::unordered_map<std::string_view, int> asked;
  for (const Entry& entry : entries) {
    require(
        entry.tensor.contiguous() && is_within(entry.slice, entry.global) && entry.slice.elements() == entry.tensor.elements(),
        "checkpoint: ", entry.name, " ", entry.tensor.shape, " is not the slice ", entry.slice.text(), " of ", entry.global);
    if (asked[entry.name]++ > 0) continue;
    const auto stored = manifest_.tensors.find(entry.name);
    if (stored == manifest_.tensors.end()) {
      mismatch.missing.push_back(entry.name);
    } else if (stored->second.shape != entry.global || name_of(stored->second.dtype) != name_of(entry.tensor.dtype)) {
      mismatch.different.push_back(concat(in_quotes(entry.name), " is ", name_of(stored->second.dtype), " ", stored->second.shape,
                                          ", expected ", name_of(entry.tensor.dtype), " ", entry.global));
    }
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    if (!asked.contains(name) && !glob_match_any(ignorable, name)) mismatch.unexpected.push_back(name);
  }
  mismatch.raise((path_ / kManifestName).string());
}

void Reader::load(Queue& queue, std::span<const Entry> entries, const std::vector<std::string>& ignorable) const {
  check_entries(entries, ignorable);
  if (queue.kind() == DeviceKind::meta) return;
  std::unique_ptr<std::byte[]> staging;
  std::size_t staging_bytes = 0;
  for (const Entry& entry : entries) {
    const StoredTensor& tensor = manifest_.tensors.at(entry.name);
    const auto same = std::find_if(tensor.slices.begin(), tensor.slices.end(),
                                   [&](const StoredSlice& stored) { return stored.slice == entry.slice; });
    if (same != tensor.slices.end()) {
      queue.copy_to_device(entry.tensor.data, bytes(*same).data(), entry.tensor.bytes());
      continue;
    }
    queue.synchronize();  // the staging memory may still be on its way
    if (entry.tensor.bytes() > staging_bytes) {
      staging_bytes = entry.tensor.bytes();
      staging = std::make_unique_for_overwrite<std::byte[]>(staging_bytes);
    }
    std::int64_t copied = 0;
    for (const StoredSlice& stored : tensor.slices) {
      copied += copy_overlap(tensor.shape, stored.slice, bytes(stored).data(), entry.slice, staging.get(), size_of(tensor.dtype));
    }
    require(copied == entry.slice.elements(), "checkpoint: ", entry.name, ": ", copied, " of ", entry.slice.elements(),
            " elements found");
    queue.copy_to_device(entry.tensor.data, staging.get(), entry.tensor.bytes());
  }
  queue.synchronize();
}

}  // namespace octet::checkpoint
