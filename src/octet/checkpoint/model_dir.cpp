#include "octet/checkpoint/model_dir.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAlwaysIgnorable = "*rotary_emb.inv_freq";  // in old checkpoints; it follows from config.json
constexpr std::int64_t kChunkElements = 1 << 20;  // bounds the staging memory, and fits in the cache while it is converted

// Elements [begin, end) of a parameter in its global row-major order. They are elements [at, at + end - begin) of the entry.
struct ElementRun {
  std::int64_t at, begin, end;
};
std::vector<ElementRun> global_runs(const parallel::NameEntry& entry) {
  const Shape& shape = entry.parameter->cut.global();
  const std::int64_t cols = shape.rank() > 1 && shape[0] > 0 ? shape.elements() / shape[0] : 1;
  std::vector<ElementRun> runs;
  std::int64_t at = 0;
  for (const parallel::RowRun& rows : entry.rows) {
    require(0 <= rows.begin && rows.begin <= rows.end && rows.end * cols <= shape.elements(), entry.external, ": rows [",
            rows.begin, ", ", rows.end, ") of ", shape);
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

// The elements of a parameter's primary that are in staging memory.
struct Staged {
  std::int64_t begin = 0, count = 0;
};

// Calls `whole` for the parameters of a table in order, and keeps the result of the last call.
class WholeParameters {
 public:
  WholeParameters(const parallel::NameTable& table, const WholeParameter& whole) : table_(table), whole_(whole) {
    std::unordered_set<const parallel::Parameter*> seen;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (begins(i)) require(seen.insert(table[i].parameter).second, table[i].external, ": apart from the rest of its parameter");
    }
  }

  // The whole parameter of entry i. `i` must not decrease from call to call; it repeats while an entry is read in pieces.
  const Tensor& at(std::size_t i) {
    if (i < next_ || !begins(i)) return current_;
    next_ = table_.size();  // if this call throws, finish() makes no more calls
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

}  // namespace

void check_weights(const ModelWeights& weights, const parallel::NameTable& table, const std::vector<std::string>& ignorable) {
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
    } else if (std::string fault = weights.fault_of(entry.external); !fault.empty()) {
      mismatch.different.push_back(std::move(fault));
    }
  }
  for (const std::string& name : weights.names()) {
    if (!asked.contains(name) && !glob_match(kAlwaysIgnorable, name) && !glob_match_any(ignorable, name))
      mismatch.unexpected.push_back(name);
  }
  mismatch.raise(weights.dir().string());
}

parallel::NameTable entries_in(const ModelWeights& weights, parallel::NameTable table) {
  std::erase_if(table,
                [&](const parallel::NameEntry& entry) { return entry.parameter->spec.tracked && !weights.find(entry.external); });
  return table;
}

OutputWeight output_weight(const parallel::NameEntry& entry, bool fp8) {
  OutputWeight weight{entry.external, entry.shape, fp8};
  if (entry.parameter->spec.tracked) weight.dtype = DType::f32;
  return weight;
}

void load_weights(Stream& stream, const ModelWeights& weights, const parallel::NameTable& table,
                  const std::vector<std::string>& ignorable, const FillParameter& fill) {
  check_weights(weights, table, ignorable);
  if (stream.kind() == DeviceKind::meta) return;
  const auto staging = std::make_unique_for_overwrite<std::byte[]>(kChunkElements * sizeof(double));
  const auto load = [&](const parallel::NameEntry& entry) {
    WeightReader source(weights, entry.external);
    const Tensor& primary = entry.parameter->primary();
    require(primary.contiguous(), entry.external, ": the parameter is not contiguous");
    const std::size_t width = size_of(primary.dtype);
    Staged staged;
    const auto flush = [&] {
      stream.copy_to_device(primary.as_bytes() + static_cast<std::size_t>(staged.begin) * width, staging.get(),
                            static_cast<std::size_t>(staged.count) * width);
      stream.synchronize();
      staged = {};
    };
    for_entry_runs(entry, [&](std::int64_t at, std::int64_t local, std::int64_t run) {
      for (std::int64_t done = 0; done < run;) {
        if (staged.count == kChunkElements || (staged.count > 0 && staged.begin + staged.count != local + done)) flush();
        if (staged.count == 0) staged.begin = local + done;
        const std::int64_t count = std::min(run - done, kChunkElements - staged.count);
        source.read(at + done, count, primary.dtype, staging.get() + static_cast<std::size_t>(staged.count) * width);
        staged.count += count;
        done += count;
      }
    });
    if (staged.count > 0) flush();
  };
  for (auto at = table.begin(); at != table.end();) {
    parallel::Parameter* const parameter = at->parameter;
    const auto write = [&] {
      for (; at != table.end() && at->parameter == parameter; ++at) load(*at);
    };
    fill ? fill(*parameter, write) : write();
  }
}

void save_weights(const fs::path& dir, const parallel::NameTable& table, const OutputForm& form, const WholeParameter& whole,
                  const std::function<bool(const parallel::NameEntry&)>& is_fp8) {
  WholeParameters parameters(table, whole);
  std::vector<OutputWeight> weights;
  for (const parallel::NameEntry& entry : table) weights.push_back(output_weight(entry, is_fp8 && is_fp8(entry)));
  try {
    write_weight_files(dir, weights, form, [&](std::size_t i, std::int64_t at, std::int64_t count, DType to, void* out) {
      const parallel::NameEntry& entry = table[i];
      const Tensor& source = parameters.at(i);
      require(source.contiguous() && source.elements() == entry.parameter->cut.global().elements(), entry.external,
              ": only a part of it is here");
      for (const ElementRun& run : global_runs(entry)) {
        const std::int64_t from = std::max(at, run.at), end = std::min(at + count, run.at + run.end - run.begin);
        if (from >= end) continue;
        convert(source.dtype, source.as_bytes() + static_cast<std::size_t>(run.begin + from - run.at) * size_of(source.dtype), to,
                static_cast<std::byte*>(out) + static_cast<std::size_t>(from - at) * size_of(to), end - from);
      }
    });
  } catch (const std::exception&) {
    parameters.finish();
    throw;
  }
}

void save_weights(Stream& stream, const fs::path& dir, const parallel::NameTable& table, const OutputForm& form) {
  if (stream.kind() == DeviceKind::meta) return;
  std::unique_ptr<std::byte[]> host;
  const auto copy = [&](const parallel::Parameter& parameter) {
    const Tensor& primary = parameter.primary();
    require(primary.contiguous(), parameter.spec.name, ": not contiguous");
    host = std::make_unique_for_overwrite<std::byte[]>(primary.bytes());
    stream.copy_to_host(host.get(), primary.data, primary.bytes());
    stream.synchronize();
    return Tensor(host.get(), primary.dtype, primary.shape);
  };
  save_weights(dir, table, form, copy);
}

void join_save_weights(const parallel::NameTable& table, const WholeParameter& whole) { WholeParameters(table, whole).finish(); }

}  // namespace octet::checkpoint
