#include "octet/checkpoint/reader.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "octet/base/checksum.h"
#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {

Reader Reader::open(const std::filesystem::path& step_directory, const Ranks& ranks) {
  std::optional<Reader> reader;
  std::string failure;
  try {
    const std::filesystem::path path = step_directory / kManifestName;
    reader = Reader(step_directory, parse_manifest(read_file(path), path.string()));
    reader->check_share(ranks.rank, ranks.size);
  } catch (const Error& error) {
    failure = error.what();
  }
  failure = common_failure(ranks, "open/" + step_directory.filename().string(), failure);
  demand(failure.empty(), ExitCode::data, failure);
  return std::move(*reader);
}

std::optional<Reader> Reader::open_latest(const std::filesystem::path& root,
                                          const std::function<void(std::string_view)>& on_warning, const Ranks& ranks,
                                          std::int64_t before) {
  std::string steps;  // "30 20 10"
  if (ranks.rank == 0) {
    for (const StepDirectory& found : find_checkpoints(root)) steps += concat(found.step, " ");
  }
  std::istringstream candidates(broadcast(ranks, "checkpoints", steps));
  std::vector<std::string> reasons;
  for (std::int64_t step; candidates >> step;) {
    if (step >= before) continue;
    const std::filesystem::path candidate = root / step_name(step);
    try {
      Reader reader = open(candidate, ranks);
      for (const std::string& reason : reasons) on_warning(concat(reason, "; using ", candidate.string(), " in its place"));
      return reader;
    } catch (const Error& error) {
      if (error.code() != ExitCode::data) throw;
      reasons.emplace_back(error.what());
    }
  }
  if (reasons.empty()) return std::nullopt;
  std::string all;
  for (const std::string& reason : reasons) all += (all.empty() ? "" : "; ") + reason;
  fail(ExitCode::data, root.string(), ": no checkpoint of ", reasons.size(), " can be read: ", all);
}

// Returns the data of a slice. Opens its file if necessary and checks that the tensor in the file agrees with the manifest.
std::span<const std::byte> Reader::bytes(const StoredTensor& tensor, const StoredSlice& stored) const {
  auto found = files_.find(stored.file);
  if (found == files_.end()) found = files_.emplace(stored.file, SafetensorsFile::open(path_ / stored.file)).first;
  const SafetensorsFile& file = found->second;
  const TensorInfo* info = file.find(stored.name);
  demand(info != nullptr, ExitCode::data, file.path().string(), ": no tensor ", in_quotes(stored.name),
         ", which the manifest names");
  const Shape shape = stored_shape(stored.slice);
  bool fits = info->dtype == tensor.dtype && info->dims.size() == static_cast<std::size_t>(shape.rank());
  for (int d = 0; fits && d < shape.rank(); ++d) fits = info->dims[static_cast<std::size_t>(d)] == shape[d];
  demand(fits, ExitCode::data, file.path().string(), ": tensor ", in_quotes(stored.name), " is ", info->dtype_name, " ",
         info->shape_text(), ", the manifest says ", name_of(tensor.dtype), " ", shape);
  return file.bytes(*info);
}

void Reader::check_share(int rank, int size) const {
  struct Stored {
    const StoredTensor* tensor;
    const StoredSlice* slice;
    std::uint64_t bytes;
  };
  std::vector<Stored> all;
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      all.push_back({&tensor, &slice, static_cast<std::uint64_t>(slice.slice.elements()) * size_of(tensor.dtype)});
      total += all.back().bytes;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Stored& a, const Stored& b) { return a.slice->file < b.slice->file; });

  std::vector<Stored> share;
  const auto ranks = static_cast<std::uint64_t>(size);
  for (std::uint64_t at = 0; const Stored& stored : all) {
    const std::uint64_t owner = total > 0 ? std::min(ranks - 1, at * ranks / total) : 0;
    if (owner == static_cast<std::uint64_t>(rank)) share.push_back(stored);
    at += stored.bytes;
  }
  std::vector<std::span<const std::byte>> data;
  for (const Stored& stored : share) data.push_back(bytes(*stored.tensor, *stored.slice));
  std::vector<std::uint64_t> sums(share.size());
  parallel_for(static_cast<std::int64_t>(share.size()), [&](std::int64_t i) {
    const auto k = static_cast<std::size_t>(i);
    sums[k] = checksum(data[k]);
  });
  for (std::size_t k = 0; k < share.size(); ++k) {
    const StoredSlice& slice = *share[k].slice;
    demand(sums[k] == slice.sum, ExitCode::data, (path_ / slice.file).string(), ": tensor ", in_quotes(slice.name),
           ": its bytes are damaged (XXH3 sum ", sums[k], ", the manifest says ", slice.sum, ")");
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
    if (entry.tensor.elements() == 0) continue;
    const auto same = std::find_if(tensor.slices.begin(), tensor.slices.end(),
                                   [&](const StoredSlice& stored) { return stored.slice == entry.slice; });
    if (same != tensor.slices.end()) {
      queue.copy_to_device(entry.tensor.data, bytes(tensor, *same).data(), entry.tensor.bytes());
      continue;
    }
    queue.synchronize();  // an earlier copy from the staging memory may still be running
    if (entry.tensor.bytes() > staging_bytes) {
      staging_bytes = entry.tensor.bytes();
      staging = std::make_unique_for_overwrite<std::byte[]>(staging_bytes);
    }
    std::int64_t copied = 0;
    for (const StoredSlice& stored : tensor.slices) {
      if (!overlap(tensor.shape, stored.slice, entry.slice)) continue;
      copied += copy_overlap(tensor.shape, stored.slice, bytes(tensor, stored).data(), entry.slice, staging.get(),
                             size_of(tensor.dtype));
    }
    require(copied == entry.slice.elements(), "checkpoint: ", entry.name, ": ", copied, " of ", entry.slice.elements(),
            " elements found");
    queue.copy_to_device(entry.tensor.data, staging.get(), entry.tensor.bytes());
  }
  queue.synchronize();
}

nlohmann::json newest_meta(const std::filesystem::path& root) {
  for (const StepDirectory& found : find_checkpoints(root)) {
    const std::filesystem::path path = found.path / kManifestName;
    try {
      return parse_manifest(read_file(path), path.string()).meta;
    } catch (const Error&) {  // tries the next checkpoint; open_latest() reports damaged checkpoints
    }
  }
  return nlohmann::json::object();
}

}  // namespace octet::checkpoint
