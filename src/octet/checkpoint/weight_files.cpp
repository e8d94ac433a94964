#include "octet/checkpoint/weight_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/block_fp8.h"
#include "octet/checkpoint/model_weights.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/device/arena.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShardGlob = "model-*-of-*.safetensors";
constexpr std::int64_t kSlabElements = 1 << 20;  // bounds the staging memory, and fits in the cache while it is converted

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

// The tensors that a weight becomes in its file.
std::vector<TensorDeclaration> declarations_of(const OutputWeight& weight, DType dtype) {
  if (!weight.fp8) return {{weight.name, weight.dtype.value_or(dtype), weight.shape}};
  return {{weight.name, DType::f8_e4m3, weight.shape},
          {scale_name(weight.name), DType::f32, block_scale_shape(weight.shape[0], weight.shape[1])}};
}

std::int64_t stored_bytes(const OutputWeight& weight, DType dtype) {
  std::size_t bytes = 0;
  for (const TensorDeclaration& tensor : declarations_of(weight, dtype)) bytes += bytes_of(tensor.dtype, tensor.shape);
  return static_cast<std::int64_t>(bytes);
}

using Range = std::pair<std::size_t, std::size_t>;

// Divides the weights into shards like transformers: in order, with a new shard when the next weight would exceed the limit.
std::vector<Range> cut_shards(const std::vector<OutputWeight>& weights, const OutputForm& form) {
  std::vector<Range> shards{{0, 0}};
  std::int64_t size = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::int64_t bytes = stored_bytes(weights[i], form.dtype);
    if (size > 0 && size + bytes > form.max_shard_bytes) {
      shards.emplace_back(i, i);
      size = 0;
    }
    size += bytes;
    shards.back().second = i + 1;
  }
  return shards;
}

// Quantises a matrix on the CPU with Octet's own kernel, a slab of rows at a time.
class BlockCast {
 public:
  explicit BlockCast(const QuantSpec& spec)
      : spec_(spec),
        device_(make_device(DeviceKind::cpu)),
        stream_(device_->make_stream()),
        scratch_(*device_, MemoryCategory::workspace, 0) {
    require(spec.format == Fp8Format::e4m3 && spec.tile == ScaleTile::block_128x128, "block FP8 files: another format or tile");
  }

  // Writes the codes of each slab and, at the end, all scales.
  void cast(const OutputWeight& weight, const std::function<void(std::int64_t begin, std::int64_t count, void* bf16)>& values,
            const std::function<void(std::int64_t begin, std::span<const std::byte> codes)>& write_codes,
            const std::function<void(std::span<const std::byte> scales)>& write_scales) {
    const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
    const std::int64_t slab = kSlabElements / std::max<std::int64_t>(1, cols) / kBlock * kBlock;
    const std::int64_t most = std::min(rows, std::max(kBlock, slab)), row_blocks = block_scale_shape(1, cols)[1];
    x_.resize(static_cast<std::size_t>(most * cols) * size_of(DType::bf16));
    codes_.resize(static_cast<std::size_t>(most * cols));
    scales_.resize(static_cast<std::size_t>(block_scale_shape(rows, cols).elements()));
    for (std::int64_t row = 0; row < rows; row += most) {
      const std::int64_t count = std::min(most, rows - row);
      values(row * cols, count * cols, x_.data());
      const Quantized out = {
          .format = spec_.format,
          .tile = spec_.tile,
          .rowwise = {codes_.data(), dtype_of(spec_.format), {count, cols}},
          .rowwise_scale_inv = {scales_.data() + row / kBlock * row_blocks, DType::f32, block_scale_shape(count, cols)},
          .columnwise = {},
          .columnwise_scale_inv = {}};
      kernels::quantize(*stream_, scratch_, {.x = {x_.data(), DType::bf16, {count, cols}}, .spec = spec_, .out = out});
      stream_->synchronize();
      write_codes(row * cols, std::span(codes_).first(static_cast<std::size_t>(count * cols)));
    }
    write_scales(std::as_bytes(std::span(scales_)));
  }

 private:
  QuantSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  std::vector<std::byte> x_, codes_;
  std::vector<float> scales_;
};

void remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno(ExitCode::internal, path, "cannot remove");
}

class Output {
 public:
  Output(const std::vector<OutputWeight>& weights, const OutputForm& form, const WeightValues& values)
      : weights_(weights), form_(form), values_(values), cast_(form.fp8) {
    for (const OutputWeight& weight : weights) total_ += stored_bytes(weight, form.dtype);
  }

  void write_all(const fs::path& dir) {
    make_folders(dir);
    const std::vector<Range> shards = cut_shards(weights_, form_);
    std::set<std::string> files;
    Json index;
    index["metadata"]["total_size"] = total_;
    std::map<std::string, std::string> weight_map;
    for (std::size_t k = 0; k < shards.size(); ++k) {
      const std::string name = shards.size() == 1 ? form_.file : shard_name(k + 1, shards.size());
      // Before an old shard is overwritten, removes the old index, which must not describe a mixture of old and new shards.
      if (shards.size() > 1 && path_exists(dir / name)) remove_file(dir / kIndexFile);
      write_shard(dir / name, shards[k]);
      files.insert(name);
      for (std::size_t i = shards[k].first; i < shards[k].second; ++i) {
        for (const TensorDeclaration& tensor : declarations_of(weights_[i], form_.dtype)) weight_map[tensor.name] = name;
      }
    }
    if (shards.size() > 1) {
      index["weight_map"] = weight_map;
      write_file_atomically(dir / kIndexFile, index.dump(2) + "\n");
      files.insert(kIndexFile);
    }
    for (const fs::path& file : entries_of(dir)) {
      const std::string name = file.filename().string();
      const bool ours = name == kSingleFile || name == kIndexFile || glob_match(kShardGlob, name);
      if (ours && !files.contains(name)) remove_file(file);
    }
    sync_directory(dir);
  }

 private:
  // Stores wide dtypes first, so that all data are aligned, which some readers need. The values are still produced in the order
  // of the weights.
  void write_shard(const fs::path& path, Range range) {
    struct Tensor {
      TensorDeclaration declaration;
      std::size_t weight, part;  // part 0: the values or codes; part 1: the scales
    };
    std::vector<Tensor> tensors;
    for (std::size_t i = range.first; i < range.second; ++i) {
      std::size_t part = 0;
      for (TensorDeclaration& declaration : declarations_of(weights_[i], form_.dtype))
        tensors.push_back({std::move(declaration), i, part++});
    }
    std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      return size_of(a.declaration.dtype) > size_of(b.declaration.dtype);
    });
    std::vector<TensorDeclaration> declarations;
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> numbers;
    for (Tensor& tensor : tensors) {
      numbers[{tensor.weight, tensor.part}] = declarations.size();
      declarations.push_back(std::move(tensor.declaration));
    }
    SafetensorsWriter file(path, declarations, {{"format", "pt"}});
    for (std::size_t i = range.first; i < range.second; ++i) {
      const auto write = [&](std::size_t part, std::int64_t byte, std::span<const std::byte> bytes) {
        file.write_at(numbers.at({i, part}), static_cast<std::size_t>(byte), bytes);
        done_ += static_cast<std::int64_t>(bytes.size());
        if (form_.progress) form_.progress(done_, total_);
      };
      if (weights_[i].fp8) {
        cast_.cast(
            weights_[i], [&](std::int64_t begin, std::int64_t count, void* out) { produce(i, begin, count, DType::bf16, out); },
            [&](std::int64_t begin, std::span<const std::byte> codes) { write(0, begin, codes); },
            [&](std::span<const std::byte> scales) { write(1, 0, scales); });
      } else {
        convert_floats(i, [&](std::int64_t byte, std::span<const std::byte> bytes) { write(0, byte, bytes); });
      }
    }
    file.finish();
  }

  void produce(std::size_t i, std::int64_t begin, std::int64_t count, DType dtype, void* out) {
    values_(i, begin, count, dtype, out);
    if (!form_.not_finite || told_of_ == i || all_finite(dtype, out, count)) return;
    told_of_ = i;
    form_.not_finite(weights_[i].name);
  }

  template <class Write>
  void convert_floats(std::size_t i, const Write& write) {
    const DType dtype = weights_[i].dtype.value_or(form_.dtype);
    const std::int64_t elements = weights_[i].shape.elements(), width = static_cast<std::int64_t>(size_of(dtype));
    piece_.resize(static_cast<std::size_t>(std::min(kSlabElements, elements) * width));
    for (std::int64_t at = 0; at < elements; at += kSlabElements) {
      const std::int64_t count = std::min(kSlabElements, elements - at);
      produce(i, at, count, dtype, piece_.data());
      write(at * width, std::span(piece_).first(static_cast<std::size_t>(count * width)));
    }
  }

  const std::vector<OutputWeight>& weights_;
  const OutputForm& form_;
  const WeightValues& values_;
  BlockCast cast_;
  std::vector<std::byte> piece_;
  std::int64_t done_ = 0, total_ = 0;
  std::optional<std::size_t> told_of_;  // the last weight for which form_.not_finite was called
};

}  // namespace

void write_weight_files(const fs::path& dir, const std::vector<OutputWeight>& weights, const OutputForm& form,
                        const WeightValues& values) {
  require(is_stored_float(form.dtype) && form.max_shard_bytes > 0, "weights as ", name_of(form.dtype), " in shards of ",
          form.max_shard_bytes, " bytes");
  Output(weights, form, values).write_all(dir);
}

}  // namespace octet::checkpoint
