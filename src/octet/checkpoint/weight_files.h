// Writes the weights of a model directory in the Hugging Face layout: model.safetensors, or shards and their index. Weights are
// floating point; matrices may also be FP8 (block_fp8.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octet/numerics/recipe.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet::checkpoint {

inline constexpr const char* kSingleFile = "model.safetensors";
constexpr std::int64_t kMaxShardBytes = 5'000'000'000;  // the default of transformers

struct OutputWeight {
  std::string name;
  Shape shape;
  bool fp8 = false;                 // the weight is a matrix and is written as FP8 codes and scales
  std::optional<DType> dtype = {};  // instead of that of the form
};

// Writes elements [begin, begin + count) of weight `number` to `out` as dtype `to`. It is called for the weights in order, and
// for the elements of a weight in order.
using WeightValues = std::function<void(std::size_t number, std::int64_t begin, std::int64_t count, DType to, void* out)>;

struct OutputForm {
  DType dtype = DType::bf16;  // of weights that are not FP8: F32, BF16, F16 or F64
  // How FP8 weights are quantised from BF16 values. The first tile of a weight begins at its first row.
  QuantSpec fp8 = {.format = Fp8Format::e4m3, .tile = ScaleTile::block_128x128, .power_of_2 = true};
  std::int64_t max_shard_bytes = kMaxShardBytes;
  std::string file = kSingleFile;  // the name of the file if all weights fit into max_shard_bytes
  std::function<void(std::int64_t bytes, std::int64_t of)> progress =
      {};  // called with the bytes of data written so far, and the total
  std::function<void(const std::string& weight)> not_finite =
      {};  // called once for a weight with NaN or infinity among its values
};

// Creates `dir` if necessary. Writes model.safetensors if all weights fit into max_shard_bytes; otherwise writes
// model-00001-of-0000N.safetensors and so on, in the order of `weights`, and then the index. Each file is written atomically.
// Deletes weight files of an earlier save that are not part of this one (model.safetensors, the index and
// model-*-of-*.safetensors). Throws Error{internal} "PATH: reason" if writing fails, for example because the disk is full. Memory
// holds a few MiB, or 128 rows of an FP8 weight.
void write_weight_files(const std::filesystem::path& dir, const std::vector<OutputWeight>& weights, const OutputForm& form,
                        const WeightValues& values);

}  // namespace octet::checkpoint
