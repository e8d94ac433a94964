#include "octet/checkpoint/model_weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <set>
#include <system_error>
#include <type_traits>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/block_fp8.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/telemetry/rank_page.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kIndexDepth = 8;
constexpr std::int64_t kPieceElements = 1 << 20;  // bounds staging memory
constexpr std::int64_t kGrain = 1 << 16;

template <class F>
void visit_stored_float(DType dtype, F&& f) {
  if (dtype == DType::f16) {
    f.template operator()<Float16>();
  } else {
    visit_float(dtype, std::forward<F>(f));
  }
}

// Rounds to F32 for a second rounding to a narrower type. A value that is not exact becomes its neighbour with an odd last bit,
// which is no tie of the narrower type, so the second rounding errs as if it were the only one.
float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x) return nearest;
  const std::uint32_t beyond = std::abs(static_cast<double>(nearest)) > std::abs(x) ? 1 : 0;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(nearest) - beyond) | 1u);
}

bool config_says_block_fp8(const fs::path& dir) {
  const fs::path path = dir / "config.json";
  return path_exists(path) && is_block_fp8(read_json(path), path.string());
}

// The files of `files` that do not exist in `dir`, sorted.
std::vector<std::string> absent_of(const std::set<std::string>& files, const fs::path& dir) {
  std::vector<std::string> absent;
  for (const std::string& file : files) {
    if (!path_exists(dir / file)) absent.push_back(file);
  }
  return absent;
}

// The safetensors files in `dir` that are not in `files`, sorted.
std::vector<std::string> files_besides(const std::set<std::string>& files, const fs::path& dir) {
  std::vector<std::string> besides;
  for (const fs::path& entry : entries_of(dir)) {
    const fs::path name = entry.filename();
    if (name.extension() == ".safetensors" && !files.contains(name.string())) besides.push_back(name.string());
  }
  return besides;
}

}  // namespace

bool is_stored_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

bool all_finite(DType dtype, const void* values, std::int64_t count) {
  std::atomic<bool> finite = true;
  visit_stored_float(dtype, [&]<class T>() {
    parallel_ranges(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      const auto is_finite = [](T value) { return std::isfinite(static_cast<float>(value)); };
      if (!std::all_of(static_cast<const T*>(values) + begin, static_cast<const T*>(values) + end, is_finite)) finite = false;
    });
  });
  return finite;
}

void convert(DType from, const void* in, DType to, void* out, std::int64_t count) {
  visit_stored_float(from, [&]<class From>() {
    visit_stored_float(to, [&]<class To>() {
      const From* source = static_cast<const From*>(in);
      To* target = static_cast<To*>(out);
      parallel_ranges(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if constexpr (std::is_same_v<From, To>) {
            target[i] = source[i];
          } else if constexpr (std::is_same_v<From, double> && !std::is_same_v<To, float>) {
            target[i] = static_cast<To>(round_to_odd(source[i]));
          } else {
            target[i] = static_cast<To>(static_cast<float>(source[i]));
          }
        }
      });
    });
  });
}

std::map<std::string, std::string> parse_index(std::string_view text, const std::string& source) {
  const nlohmann::json document = parse_json(text, source, kIndexDepth);
  const bool has_map = document.is_object() && document.contains("weight_map") && document["weight_map"].is_object();
  demand(has_map, ExitCode::data, source, ": no weight_map");
  std::map<std::string, std::string> shards;
  for (const auto& [name, file] : document["weight_map"].items()) {
    demand(file.is_string(), ExitCode::data, source, ": tensor ", in_quotes(name), ": its file is not a string");
    const auto& file_name = file.get_ref<const std::string&>();
    demand(is_file_name(file_name), ExitCode::data, source, ": tensor ", in_quotes(name), ": ", in_quotes(file_name),
           " is not a file of this directory");
    shards.emplace(name, file_name);
  }
  return shards;
}

bool has_weights(const fs::path& dir) { return path_exists(dir / kSingleFile) || path_exists(dir / kIndexFile); }

void ModelWeights::add(const fs::path& path) {
  FileReader file(path);
  SafetensorsHeader header = read_safetensors_header(file);
  shards_.push_back({std::move(file), std::move(header)});
}

void ModelWeights::add_shards() {
  const fs::path index_path = dir_ / kIndexFile;
  const std::map<std::string, std::string> index = parse_index(read_file(index_path), index_path.string());
  std::set<std::string> files;
  for (const auto& [name, file] : index) files.insert(file);
  const std::vector<std::string> absent = absent_of(files, dir_);
  for (const std::string& file : files) {
    if (!std::binary_search(absent.begin(), absent.end(), file)) add(dir_ / file);
  }

  Mismatch mismatch;
  mismatch.absent = absent;
  mismatch.surplus = files_besides(files, dir_);
  std::set<std::string> elsewhere;
  for (std::size_t number = 0; number < shards_.size(); ++number) {
    const std::string file = shards_[number].file.path().filename().string();
    for (const TensorInfo& info : shards_[number].header.tensors) {
      const auto named = index.find(info.name);
      if (named == index.end()) {
        mismatch.unexpected.push_back(info.name);
        mismatch.files.emplace(info.name, file);
      } else if (named->second != file) {
        elsewhere.insert(info.name);
        mismatch.different.push_back(concat(in_quotes(info.name), " is in ", file, ", the index says ", named->second));
      } else {
        places_.emplace(info.name, Place{number, &info});
      }
    }
  }
  for (const auto& [name, file] : index) {
    if (places_.contains(name) || elsewhere.contains(name) || std::binary_search(absent.begin(), absent.end(), file)) continue;
    mismatch.missing.push_back(name);
    mismatch.files.emplace(name, file);
  }
  mismatch.raise(index_path.string());
}

void ModelWeights::add_single(const fs::path& path) {
  add(path);
  for (const TensorInfo& info : shards_.front().header.tensors) places_.emplace(info.name, Place{0, &info});
}

ModelWeights ModelWeights::open_file(const fs::path& file) {
  ModelWeights weights;
  weights.dir_ = file;
  weights.add_single(file);
  for (const auto& [name, place] : weights.places_) weights.names_.push_back(name);
  return weights;
}

ModelWeights ModelWeights::open(const fs::path& dir) {
  demand(has_weights(dir), ExitCode::data, dir.string(), ": neither ", kSingleFile, " nor ", kIndexFile);
  ModelWeights weights;
  weights.dir_ = dir;
  weights.block_fp8_ = config_says_block_fp8(dir);
  if (path_exists(dir / kSingleFile)) {
    weights.add_single(dir / kSingleFile);
  } else {
    weights.add_shards();
  }
  for (const auto& [name, place] : weights.places_) {
    const bool scale_of_another = weights.block_fp8_ && name.ends_with(scale_name("")) &&
                                  weights.places_.contains(name.substr(0, name.size() - scale_name("").size()));
    if (!scale_of_another) weights.names_.push_back(name);
  }
  return weights;
}

const TensorInfo* ModelWeights::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.info;
}

const ModelWeights::Place& ModelWeights::place_of(const std::string& name) const {
  const auto found = places_.find(name);
  demand(found != places_.end(), ExitCode::data, dir_.string(), ": no tensor ", in_quotes(name), did_you_mean(name, names_));
  return found->second;
}

std::string ModelWeights::fault_of(const std::string& name) const {
  const TensorInfo& info = *place_of(name).info;
  const TensorInfo* scales = block_fp8_ ? find(scale_name(name)) : nullptr;
  const std::string is = concat(in_quotes(name), " is ", info.dtype_name);
  if (info.dtype && is_stored_float(*info.dtype)) {
    return scales == nullptr ? "" : concat(is, ", yet there is ", in_quotes(scales->name));
  }
  if (info.dtype != DType::f8_e4m3) return concat(is, ", expected F32, BF16, F16 or F64");
  if (!block_fp8_) return concat(is, ", but config.json has no quantization_config");
  if (info.dims.size() != 2) return concat(is, " ", info.shape_text(), ", expected a matrix");
  if (scales == nullptr) return concat(is, " without ", in_quotes(scale_name(name)));
  const Shape expected = block_scale_shape(info.dims[0], info.dims[1]);
  const bool fits = scales->dtype && is_stored_float(*scales->dtype) && scales->dims.size() == 2 &&
                    scales->dims[0] == expected[0] && scales->dims[1] == expected[1];
  if (fits) return "";
  return concat(in_quotes(scales->name), " is ", scales->dtype_name, " ", scales->shape_text(),
                ", expected F32, BF16, F16 or F64 ", expected);
}

WeightReader::WeightReader(const ModelWeights& weights, const std::string& name)
    : file_(weights.shards_[weights.place_of(name).file].file),
      info_(*weights.place_of(name).info),
      data_begin_(weights.shards_[weights.place_of(name).file].header.data_begin + info_.begin) {
  require(weights.fault_of(name).empty(), weights.fault_of(name));
  elements_ = static_cast<std::int64_t>((info_.end - info_.begin) / size_of(*info_.dtype));
  if (is_stored_float(*info_.dtype)) return;
  const ModelWeights::Place& place = weights.place_of(scale_name(name));
  const ModelWeights::Shard& shard = weights.shards_[place.file];
  stored_.resize(place.info->end - place.info->begin);
  shard.file.read_at(shard.header.data_begin + place.info->begin, stored_);
  scales_.resize(stored_.size() / size_of(*place.info->dtype));
  convert(*place.info->dtype, stored_.data(), DType::f32, scales_.data(), static_cast<std::int64_t>(scales_.size()));
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    demand(std::isfinite(scales_[i]) && scales_[i] >= 0, ExitCode::data, shard.file.path().string(), ": tensor ",
           in_quotes(place.info->name), ": element ", i, " is ", scales_[i], "; a scale must be finite and not negative");
  }
}

void WeightReader::read(std::int64_t begin, std::int64_t count, DType to, void* out) {
  require(0 <= begin && 0 <= count && count <= elements_ - begin, info_.name, ": elements [", begin, ", ", begin + count, ") of ",
          elements_);
  const std::size_t width = size_of(*info_.dtype);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t piece = std::min(count - done, kPieceElements), at = begin + done;
    void* target = static_cast<std::byte*>(out) + static_cast<std::size_t>(done) * size_of(to);
    const bool as_stored = to == *info_.dtype;
    if (!as_stored) stored_.resize(std::max(stored_.size(), static_cast<std::size_t>(piece) * width));
    const std::span<std::byte> bytes(as_stored ? static_cast<std::byte*>(target) : stored_.data(),
                                     static_cast<std::size_t>(piece) * width);
    file_.read_at(data_begin_ + static_cast<std::size_t>(at) * width, bytes);
    telemetry::own_page().mark();
    if (!scales_.empty()) {
      decoded_.resize(std::max(decoded_.size(), static_cast<std::size_t>(piece)));
      decode_blocks({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, at, info_.dims[1], scales_,
                    decoded_.data());
      convert(DType::f32, decoded_.data(), to, target, piece);
    } else if (!as_stored) {
      convert(*info_.dtype, bytes.data(), to, target, piece);
    }
    done += piece;
  }
}

}  // namespace octet::checkpoint
