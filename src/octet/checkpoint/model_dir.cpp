#include "octet/checkpoint/model_dir.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kShardGlob = "model-*-of-*.safetensors";
constexpr std::string_view kAlwaysIgnorable = "*rotary_emb.inv_freq";  // old checkpoints store what follows from the config
constexpr int kIndexDepth = 8;
constexpr std::int64_t kChunkElements = 1 << 20;  // converted while in cache, and the bound on staging memory
constexpr std::int64_t kGrain = 1 << 16;

// {tensor: shard} of an index file.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const nlohmann::json document = parse_json(read_file(path), path.string(), kIndexDepth);
  const bool has_map = document.is_object() && document.contains("weight_map") && document["weight_map"].is_object();
  demand(has_map, ExitCode::data, path.string(), ": no weight_map");
  std::map<std::string, std::string> shards;
  for (const auto& [name, file] : document["weight_map"].items()) {
    demand(file.is_string(), ExitCode::data, path.string(), ": tensor ", in_quotes(name), ": its file is not a string");
    const auto& file_name = file.get_ref<const std::string&>();
    demand(is_file_name(file_name), ExitCode::data, path.string(), ": tensor ", in_quotes(name), ": ", in_quotes(file_name),
           " is not a file of this directory");
    shards.emplace(name, file_name);
  }
  return shards;
}

bool is_float(DType dtype) { return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

template <class F>
void visit_stored_float(DType dtype, F&& f) {
  if (dtype == DType::f16) {
    f.template operator()<Float16>();
  } else {
    visit_float(dtype, std::forward<F>(f));
  }
}

// out[i] = in[i]; by way of F32 unless both are the same.
void convert(DType from, const void* in, DType to, void* out, std::int64_t count) {
  visit_stored_float(from, [&]<class From>() {
    visit_stored_float(to, [&]<class To>() {
      const From* source = static_cast<const From*>(in);
      To* target = static_cast<To*>(out);
      parallel_ranges(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if constexpr (std::is_same_v<From, To>) {
            target[i] = source[i];
          } else {
            target[i] = static_cast<To>(static_cast<float>(source[i]));
          }
        }
      });
    });
  });
}

// Elements [begin, end) of a parameter, in its global row-major order, which the entry has from element `at` on.
struct ElementRun {
  std::int64_t at, begin, end;
};
std::vector<ElementRun> global_runs(const parallel::NameEntry& entry) {
  const Shape& shape = entry.parameter->cut.global();
  const std::int64_t cols = shape.rank() > 1 && shape[0] > 0 ? shape.elements() / shape[0] : 1;
  std::vector<ElementRun> runs;
  std::int64_t at = 0;
  for (const parallel::RowRun& rows : entry.rows) {
    require(0 <= rows.begin && rows.begin <= rows.end && rows.end * cols <= shape.elements(), entry.external, ": rows [", rows.begin,
            ", ", rows.end, ") of ", shape);
    runs.push_back({.at = at, .begin = rows.begin * cols, .end = rows.end * cols});
    at += (rows.end - rows.begin) * cols;
  }
  require(at == entry.shape.elements(), entry.external, ": rows of ", at, " elements are not ", entry.shape);
  return runs;
}

// Calls visit(element of the entry, element of the parameter's primary, count) for each run of consecutive elements of the entry
// that this rank holds.
template <class Visit>
void for_entry_runs(const parallel::NameEntry& entry, const Visit& visit) {
  const parallel::Parameter& p = *entry.parameter;
  const std::vector<ElementRun> runs = global_runs(entry);
  for (const parallel::TensorPiece& piece : p.cut.pieces(p.first_element, p.primary().elements())) {
    parallel::for_runs(piece, p.cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      for (const ElementRun& run : runs) {
        const std::int64_t from = std::max(global, run.begin), to = std::min(global + count, run.end);
        if (from < to) visit(run.at + from - run.begin, local + from - global - p.first_element, to - from);
      }
    });
  }
}

// What of a parameter's primary waits in staging memory.
struct Staged {
  std::int64_t begin = 0, count = 0;
};

void check_names(const ModelWeights& weights, const parallel::NameTable& table, const std::vector<std::string>& ignorable) {
  Mismatch mismatch;
  std::unordered_set<std::string_view> asked;
  for (const parallel::NameEntry& entry : table) {
    asked.insert(entry.external);
    const TensorInfo* info = weights.find(entry.external);
    if (info == nullptr) {
      mismatch.missing.push_back(entry.external);
      continue;
    }
    bool fits = info->dims.size() == static_cast<std::size_t>(entry.shape.rank());
    for (int d = 0; fits && d < entry.shape.rank(); ++d) fits = info->dims[static_cast<std::size_t>(d)] == entry.shape[d];
    if (!fits) {
      mismatch.different.push_back(concat(in_quotes(entry.external), " is ", info->shape_text(), ", expected ", entry.shape));
    } else if (!info->dtype || !is_float(*info->dtype)) {
      mismatch.different.push_back(
          concat(in_quotes(entry.external), " is ", info->dtype_name, ", expected F32, BF16, F16 or F64"));
    }
  }
  for (const std::string& name : weights.names()) {
    if (!asked.contains(name) && !glob_match(kAlwaysIgnorable, name) && !glob_match_any(ignorable, name))
      mismatch.unexpected.push_back(name);
  }
  mismatch.raise(weights.dir().string());
}

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

std::size_t stored_bytes(const parallel::NameEntry& entry, DType dtype) { return bytes_of(dtype, entry.shape); }

using EntryRange = std::pair<std::size_t, std::size_t>;

// Cuts the table into shards as transformers does: in order, a new one when the next tensor would exceed the limit.
std::vector<EntryRange> cut_shards(const parallel::NameTable& table, DType dtype, std::int64_t max_shard_bytes) {
  std::vector<EntryRange> shards{{0, 0}};
  std::size_t size = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::size_t bytes = stored_bytes(table[i], dtype);
    if (size > 0 && size + bytes > static_cast<std::size_t>(max_shard_bytes)) {
      shards.emplace_back(i, i);
      size = 0;
    }
    size += bytes;
    shards.back().second = i + 1;
  }
  return shards;
}

// The parameters of a table, one at a time, in its order.
class WholeParameters {
 public:
  WholeParameters(const parallel::NameTable& table, const WholeParameter& whole) : table_(table), whole_(whole) {
    std::unordered_set<const parallel::Parameter*> seen;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (begins(i)) require(seen.insert(table[i].parameter).second, table[i].external, ": apart from the rest of its parameter");
    }
  }

  // That of entry i; entries are asked for in order.
  const Tensor& at(std::size_t i) {
    if (!begins(i)) return current_;
    next_ = table_.size();  // should this call fail, there are no more
    current_ = whole_(*table_[i].parameter);
    next_ = i + 1;
    return current_;
  }
  // Makes the calls that have not been made.
  void finish() {
    for (std::size_t i = next_; i < table_.size(); ++i) at(i);
  }

 private:
  bool begins(std::size_t i) const { return i == 0 || table_[i].parameter != table_[i - 1].parameter; }

  const parallel::NameTable& table_;
  const WholeParameter& whole_;
  Tensor current_;
  std::size_t next_ = 0;
};

void write_shard(const fs::path& path, const parallel::NameTable& table, EntryRange range, DType dtype, WholeParameters& whole) {
  std::vector<TensorDeclaration> declarations;
  for (std::size_t i = range.first; i < range.second; ++i) declarations.push_back({table[i].external, dtype, table[i].shape});
  SafetensorsWriter writer(path, declarations, {{"format", "pt"}});
  const auto converted = std::make_unique_for_overwrite<std::byte[]>(kChunkElements * sizeof(double));
  for (std::size_t i = range.first; i < range.second; ++i) {
    const parallel::NameEntry& entry = table[i];
    const Tensor& source = whole.at(i);
    require(source.contiguous() && source.elements() == entry.parameter->cut.global().elements(), entry.external,
            ": only a part of it is here");
    for (const ElementRun& run : global_runs(entry)) {
      for (std::int64_t at = run.begin; at < run.end; at += kChunkElements) {
        const std::int64_t count = std::min(kChunkElements, run.end - at);
        convert(source.dtype, source.as_bytes() + static_cast<std::size_t>(at) * size_of(source.dtype), dtype, converted.get(),
                count);
        writer.write({converted.get(), static_cast<std::size_t>(count) * size_of(dtype)});
      }
    }
  }
  writer.finish();
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  demand(!error, ExitCode::internal, path.string(), ": cannot remove: ", error.message());
}

// All files of the directory; those of other shardings that stood there go.
void write_directory(const fs::path& dir, const parallel::NameTable& table, DType dtype, WholeParameters& whole,
                     std::int64_t max_shard_bytes) {
  std::error_code error;
  fs::create_directories(dir, error);
  demand(!error, ExitCode::internal, dir.string(), ": cannot create: ", error.message());

  const std::vector<EntryRange> shards = cut_shards(table, dtype, max_shard_bytes);
  std::set<std::string> written;
  nlohmann::json weight_map = nlohmann::json::object();
  std::size_t total = 0;
  for (std::size_t k = 0; k < shards.size(); ++k) {
    const std::string name = shards.size() == 1 ? kSingleFile : shard_name(k + 1, shards.size());
    // An index must not describe a mixture of old and new shards.
    if (shards.size() > 1 && fs::exists(dir / name)) remove_file(dir / kIndexFile);
    write_shard(dir / name, table, shards[k], dtype, whole);
    written.insert(name);
    for (std::size_t i = shards[k].first; i < shards[k].second; ++i) {
      weight_map[table[i].external] = name;
      total += stored_bytes(table[i], dtype);
    }
  }
  if (shards.size() > 1) {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = total;
    index["weight_map"] = std::move(weight_map);
    write_file_atomically(dir / kIndexFile, index.dump(2) + "\n");
    written.insert(kIndexFile);
  }
  for (const fs::directory_entry& file : fs::directory_iterator(dir)) {
    const std::string name = file.path().filename().string();
    const bool ours = name == kSingleFile || name == kIndexFile || glob_match(kShardGlob, name);
    if (ours && !written.contains(name)) remove_file(file.path());
  }
  sync_directory(dir);
}

}  // namespace

bool has_weights(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / kSingleFile, ignored) || fs::exists(dir / kIndexFile, ignored);
}

ModelWeights ModelWeights::open(const fs::path& dir) {
  demand(has_weights(dir), ExitCode::data, dir.string(), ": neither ", kSingleFile, " nor ", kIndexFile);
  ModelWeights weights;
  weights.dir_ = dir;
  std::map<std::string, std::string> shards;
  std::map<std::string, std::size_t> files;
  const fs::path index = dir / kIndexFile;
  if (fs::exists(dir / kSingleFile)) {
    files.emplace(kSingleFile, 0);
    weights.files_.push_back(SafetensorsFile::open(dir / kSingleFile));
  } else {
    shards = read_index(index);
    for (const auto& [name, file] : shards) {
      if (files.contains(file)) continue;
      demand(fs::exists(dir / file), ExitCode::data, index.string(), ": tensor ", in_quotes(name), ": its file ", in_quotes(file),
             " is missing");
      files.emplace(file, weights.files_.size());
      weights.files_.push_back(SafetensorsFile::open(dir / file));
    }
  }
  for (const auto& [name, file] : shards) {
    const std::size_t number = files.at(file);
    const TensorInfo* info = weights.files_[number].find(name);
    demand(info != nullptr, ExitCode::data, (dir / file).string(), ": no tensor ", in_quotes(name),
           ", which the index puts there");
    weights.places_.emplace(name, Place{number, info});
  }
  // Tensors that the index forgot are there all the same, as for transformers.
  for (std::size_t number = 0; number < weights.files_.size(); ++number) {
    for (const TensorInfo& info : weights.files_[number].tensors()) {
      const auto [place, added] = weights.places_.emplace(info.name, Place{number, &info});
      demand(added || place->second.file == number, ExitCode::data, weights.files_[number].path().string(), ": tensor ",
             in_quotes(info.name), " stands in ", weights.files_[place->second.file].path().filename().string(), " as well");
    }
  }
  for (const auto& [name, place] : weights.places_) weights.names_.push_back(name);
  return weights;
}

const TensorInfo* ModelWeights::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.info;
}

Tensor ModelWeights::get(const std::string& name) const {
  const auto found = places_.find(name);
  demand(found != places_.end(), ExitCode::data, dir_.string(), ": no tensor ", in_quotes(name), did_you_mean(name, names_));
  return files_[found->second.file].get(*found->second.info);
}

void load_weights(Queue& queue, const ModelWeights& weights, const parallel::NameTable& table,
                  const std::vector<std::string>& ignorable) {
  check_names(weights, table, ignorable);
  if (queue.kind() == DeviceKind::meta) return;
  const auto staging = std::make_unique_for_overwrite<std::byte[]>(kChunkElements * sizeof(double));
  for (const parallel::NameEntry& entry : table) {
    const Tensor source = weights.get(entry.external);
    const Tensor& primary = entry.parameter->primary();
    require(primary.contiguous(), entry.external, ": the parameter is not contiguous");
    const std::size_t from_width = size_of(source.dtype), width = size_of(primary.dtype);
    Staged staged;
    const auto flush = [&] {
      queue.copy_to_device(primary.as_bytes() + static_cast<std::size_t>(staged.begin) * width, staging.get(),
                           static_cast<std::size_t>(staged.count) * width);
      queue.synchronize();
      staged = {};
    };
    for_entry_runs(entry, [&](std::int64_t at, std::int64_t local, std::int64_t run) {
      for (std::int64_t done = 0; done < run;) {
        if (staged.count == kChunkElements || (staged.count > 0 && staged.begin + staged.count != local + done)) flush();
        if (staged.count == 0) staged.begin = local + done;
        const std::int64_t count = std::min(run - done, kChunkElements - staged.count);
        convert(source.dtype, source.as_bytes() + static_cast<std::size_t>(at + done) * from_width, primary.dtype,
                staging.get() + static_cast<std::size_t>(staged.count) * width, count);
        staged.count += count;
        done += count;
      }
    });
    if (staged.count > 0) flush();
  }
}

void save_weights(const fs::path& dir, const parallel::NameTable& table, DType dtype, const WholeParameter& whole,
                  std::int64_t max_shard_bytes) {
  require(is_float(dtype) && max_shard_bytes > 0, "save_weights: ", name_of(dtype), ", ", max_shard_bytes);
  WholeParameters parameters(table, whole);
  try {
    write_directory(dir, table, dtype, parameters, max_shard_bytes);
  } catch (const std::exception&) {
    parameters.finish();
    throw;
  }
}

void save_weights(Queue& queue, const fs::path& dir, const parallel::NameTable& table, DType dtype,
                  std::int64_t max_shard_bytes) {
  if (queue.kind() == DeviceKind::meta) return;
  std::unique_ptr<std::byte[]> host;
  const auto copy = [&](const parallel::Parameter& parameter) {
    const Tensor& primary = parameter.primary();
    require(primary.contiguous(), parameter.spec.name, ": not contiguous");
    host = std::make_unique_for_overwrite<std::byte[]>(primary.bytes());
    queue.copy_to_host(host.get(), primary.data, primary.bytes());
    queue.synchronize();
    return Tensor(host.get(), primary.dtype, primary.shape);
  };
  save_weights(dir, table, dtype, copy, max_shard_bytes);
}

void join_save_weights(const parallel::NameTable& table, const WholeParameter& whole) { WholeParameters(table, whole).finish(); }

}  // namespace octet::checkpoint
