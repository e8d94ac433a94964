#include "octet/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/telemetry/rank_page.h"

namespace octet::checkpoint {

namespace {

constexpr std::size_t kPieceBytes = 4 << 20;  // read, then summed while still in cache

// Host memory that grows as needed.
class Staging {
 public:
  std::span<std::byte> of(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      bytes_ = bytes;
    }
    return {memory_.get(), bytes};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

// The failures of one rank, to be told to the others.
struct Failures {
  std::string damaged, unreadable;
  int number = 0;  // the errno of what is unreadable

  // Throws an error with this rank's number, so that a supervisor knows whether the reason may pass, and with all ranks' text.
  void demand_readable(const std::string& all) const {
    if (!all.empty()) throw SystemError(ExitCode::data, all, number);
  }
};

// Calls act(). If a file is missing, and a link in `folder` or the folder itself leads nowhere, says so, because the file may
// be there later.
template <class Act>
void act_unless_lost(const std::filesystem::path& folder, Act&& act) {
  try {
    act();
  } catch (const SystemError& error) {
    if (!error.not_there()) throw;
    demand_not_lost(folder);
    if (is_folder(folder)) {
      for (const std::filesystem::path& path : entries_of(folder)) demand_not_lost(path);
    }
    throw;
  }
}

// Calls act(), which reads `folder`, and distinguishes its errors: a file that is missing in it belongs to a damaged checkpoint.
// A file that cannot be read does not, nor does a folder that is missing: another rank may see it, where it is mounted.
template <class Act>
Failures failures_of(const std::filesystem::path& folder, Act&& act) {
  try {
    act_unless_lost(folder, act);
    return {};
  } catch (const SystemError& error) {
    if (std::error_code ignored; error.not_there() && std::filesystem::exists(folder, ignored))
      return {.damaged = error.what(), .unreadable = {}};
    // Set here and not only in main(), because the supervisor may kill this rank as soon as another one has ended.
    telemetry::own_page().storage_failed = error.may_pass();
    return {.damaged = {}, .unreadable = error.what(), .number = error.number()};
  } catch (const NewerVersion& error) {
    return {.damaged = {}, .unreadable = concat(error.what(), ", or name an older checkpoint")};
  } catch (const Error& error) {
    return {.damaged = error.what(), .unreadable = {}};
  }
}

bool is_float(DType dtype) { return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16; }

// Whether values of one dtype may be loaded into another.
bool fits(DType stored, DType wanted, OtherDtype other) {
  return name_of(stored) == name_of(wanted) || (other == OtherDtype::convert && is_float(stored) && is_float(wanted));
}

// Converts `count` values. Through F32, which rounds a double that becomes BF16 twice: only tests keep doubles.
void convert(DType from, const std::byte* x, DType to, std::byte* y, std::int64_t count) {
  visit_float(from, [&]<class From>() {
    visit_float(to, [&]<class To>() {
      const auto* values = reinterpret_cast<const From*>(x);
      auto* results = reinterpret_cast<To*>(y);
      for (std::int64_t i = 0; i < count; ++i)
        results[i] = static_cast<To>(static_cast<Real<To>>(static_cast<Real<From>>(values[i])));
    });
  });
}

Manifest read_manifest(const std::filesystem::path& step_directory, double retry_s) {
  const std::filesystem::path path = step_directory / kManifestName;
  return parse_manifest(retry(retry_s, [&] { return read_file(path); }), path.string());
}

}  // namespace

Reader Reader::open(const std::filesystem::path& step_directory, const Ranks& ranks, double retry_s) {
  std::optional<Reader> reader;
  const Failures mine = failures_of(step_directory, [&] {
    reader = Reader(step_directory, read_manifest(step_directory, retry_s), retry_s);
    reader->check_share(ranks.rank, ranks.size);
  });
  const std::string key = "open/" + step_directory.filename().string();
  const std::string unreadable = common_failure(ranks, key + "/read", mine.unreadable);
  const std::string damaged = common_failure(ranks, key, mine.damaged);
  mine.demand_readable(unreadable);
  if (!damaged.empty()) throw Damaged(damaged);
  return std::move(*reader);
}

std::optional<Reader> Reader::open_latest(const std::filesystem::path& root,
                                          const std::function<void(std::string_view)>& on_warning, const Ranks& ranks,
                                          double retry_s, std::int64_t before) {
  std::string steps;  // "30 20 10"
  Failures listing;
  if (ranks.rank == 0) {
    listing = failures_of(root, [&] {
      for (const StepDirectory& found : retry(retry_s, [&] { return find_checkpoints(root); })) steps += concat(found.step, " ");
    });
  }
  const std::string unreadable = broadcast(ranks, "checkpoints/failure", listing.unreadable + listing.damaged);
  listing.demand_readable(unreadable);
  std::istringstream candidates(broadcast(ranks, "checkpoints", steps));
  std::vector<std::pair<std::filesystem::path, std::string>> damaged;  // with the reasons
  for (std::int64_t step; candidates >> step;) {
    if (step >= before) continue;
    const std::filesystem::path candidate = root / step_name(step);
    try {
      Reader reader = open(candidate, ranks, retry_s);
      for (const auto& [path, reason] : damaged) {
        const std::string moved = ranks.rank == 0 ? "; the damaged one is now " + move_to_damaged(path).string() : "";
        on_warning(concat(reason, "; using ", candidate.string(), " in its place", moved));
      }
      return reader;
    } catch (const Damaged& error) {
      damaged.emplace_back(candidate, error.what());
    }
  }
  if (damaged.empty()) return std::nullopt;
  std::string all;
  for (const auto& [path, reason] : damaged) all += (all.empty() ? "" : "; ") + reason;
  throw Damaged(concat(root.string(), ": no checkpoint of ", damaged.size(), " can be read: ", all));
}

Reader Reader::of_part(std::filesystem::path folder, Manifest part) {
  Reader reader(std::move(folder), std::move(part), 0);
  reader.check_share(0, 1);
  return reader;
}

// Returns where the data of a slice are. Opens their file if necessary and checks that the tensor in the file agrees with the
// manifest.
Reader::Range Reader::range_of(const StoredTensor& tensor, const StoredSlice& stored) const {
  std::unique_ptr<File>& file = files_[stored.file];
  if (!file) {
    file = retry(retry_s_, [&] {
      FileReader reader(path_ / stored.file);
      SafetensorsHeader header = read_safetensors_header(reader);
      return std::make_unique<File>(File{std::move(reader), std::move(header), {}});
    });
    for (std::size_t i = 0; i < file->header.tensors.size(); ++i) file->index.emplace(file->header.tensors[i].name, i);
  }
  const std::string name = file->reader.path().string();
  const auto found = file->index.find(stored.name);
  demand(found != file->index.end(), ExitCode::data, name, ": no tensor ", in_quotes(stored.name), ", which the manifest names");
  const TensorInfo& info = file->header.tensors[found->second];
  const Shape shape = stored_shape(stored.slice);
  bool fits = info.dtype == tensor.dtype && info.dims.size() == static_cast<std::size_t>(shape.rank());
  for (int d = 0; fits && d < shape.rank(); ++d) fits = info.dims[static_cast<std::size_t>(d)] == shape[d];
  demand(fits, ExitCode::data, name, ": tensor ", in_quotes(stored.name), " is ", info.dtype_name, " ", info.shape_text(),
         ", the manifest says ", name_of(tensor.dtype), " ", shape);
  return {&file->reader, file->header.data_begin + info.begin, info.end - info.begin};
}

// Fills `out` with the bytes of a range from its byte `from` on.
void Reader::read(const Range& range, std::size_t from, std::span<std::byte> out) const {
  bool again = false;
  retry(retry_s_, [&] {
    // After ESTALE only a new descriptor can read on.
    if (std::exchange(again, true)) return FileReader(range.file->path()).read_at(range.offset + from, out);
    range.file->read_at(range.offset + from, out);
    telemetry::own_page().mark();
  });
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
  std::vector<Range> data;
  for (const Stored& stored : share) data.push_back(range_of(*stored.tensor, *stored.slice));
  std::vector<std::uint64_t> sums(share.size());
  parallel_for(static_cast<std::int64_t>(share.size()), [&](std::int64_t i) {
    const Range& range = data[static_cast<std::size_t>(i)];
    std::vector<std::byte> piece(std::min(kPieceBytes, range.bytes));
    RunningChecksum sum;
    for (std::size_t from = 0; from < range.bytes; from += piece.size()) {
      const std::span<std::byte> out = std::span(piece).first(std::min(piece.size(), range.bytes - from));
      read(range, from, out);
      sum.update(out);
    }
    sums[static_cast<std::size_t>(i)] = sum.value();
  });
  for (std::size_t k = 0; k < share.size(); ++k) {
    const StoredSlice& slice = *share[k].slice;
    demand(sums[k] == slice.sum, ExitCode::data, (path_ / slice.file).string(), ": tensor ", in_quotes(slice.name),
           fmt::format(": its bytes are damaged (XXH3 sum {:016x}, the manifest says {:016x})", sums[k], slice.sum));
  }
}

void Reader::check_entries(std::span<const Entry> entries, const std::vector<std::string>& ignorable, OtherDtype other) const {
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
    } else if (stored->second.shape != entry.global || !fits(stored->second.dtype, entry.tensor.dtype, other)) {
      mismatch.different.push_back(concat(in_quotes(entry.name), " is ", name_of(stored->second.dtype), " ", stored->second.shape,
                                          ", expected ", name_of(entry.tensor.dtype), " ", entry.global));
    }
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    if (!asked.contains(name) && !glob_match_any(ignorable, name)) mismatch.unexpected.push_back(name);
  }
  mismatch.raise((path_ / kManifestName).string());
}

void Reader::load(Stream& stream, std::span<const Entry> entries, const std::vector<std::string>& ignorable,
                  OtherDtype other) const {
  check_entries(entries, ignorable, other);
  if (stream.kind() == DeviceKind::meta) return;
  Staging staging, part, converted;
  for (const Entry& entry : entries) {
    const StoredTensor& tensor = manifest_.tensors.at(entry.name);
    if (entry.tensor.elements() == 0) continue;
    stream.synchronize();  // an earlier copy from the staging memory may still be running
    const std::span<std::byte> all = staging.of(static_cast<std::size_t>(entry.tensor.elements()) * size_of(tensor.dtype));
    std::int64_t copied = 0;
    for (const StoredSlice& stored : tensor.slices) {
      if (!overlap(tensor.shape, stored.slice, entry.slice)) continue;
      const Range range = range_of(tensor, stored);
      if (stored.slice == entry.slice) {
        read(range, 0, all);
        copied = entry.slice.elements();
        break;
      }
      const std::span<std::byte> bytes = part.of(range.bytes);
      read(range, 0, bytes);
      copied += copy_overlap(tensor.shape, stored.slice, bytes.data(), entry.slice, all.data(), size_of(tensor.dtype));
    }
    require(copied == entry.slice.elements(), "checkpoint: ", entry.name, ": ", copied, " of ", entry.slice.elements(),
            " elements found");
    std::span<std::byte> values = all;
    if (name_of(tensor.dtype) != name_of(entry.tensor.dtype)) {
      values = converted.of(entry.tensor.bytes());
      convert(tensor.dtype, all.data(), entry.tensor.dtype, values.data(), entry.tensor.elements());
    }
    stream.copy_to_device(entry.tensor.data, values.data(), entry.tensor.bytes());
  }
  stream.synchronize();
}

nlohmann::json meta_of(const std::filesystem::path& step_directory) { return read_manifest(step_directory, kRetryS).meta; }

nlohmann::json newest_meta(const std::filesystem::path& root, double retry_s) {
  for (const StepDirectory& found : retry(retry_s, [&] { return find_checkpoints(root); })) {
    nlohmann::json meta;
    const Failures failures = failures_of(found.path, [&] { meta = read_manifest(found.path, retry_s).meta; });
    failures.demand_readable(failures.unreadable);
    if (failures.damaged.empty()) return meta;  // open_latest() reports damaged ones
  }
  return nlohmann::json::object();
}

}  // namespace octet::checkpoint
