// Writes the weights of a model directory in the Hugging Face layout: model.safetensors, or shards and their index, in floats or
// with matrices in FP8 (block_fp8.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "octet/numerics/recipe.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet::checkpoint {

constexpr std::int64_t kMaxShardBytes = 5'000'000'000;  // as transformers cuts

struct OutputWeight {
  std::string name;
  Shape shape;
  bool fp8 = false;  // a matrix; codes under its name, and its scales
};

// out[0, count) = elements [begin, begin + count) of the weight with this number, as `to`. Asked for in the order of the weights
// and, within one, of its elements.
using WeightValues = std::function<void(std::size_t number, std::int64_t begin, std::int64_t count, DType to, void* out)>;

struct OutputForm {
  DType dtype = DType::bf16;  // of those not in FP8: F32, BF16, F16 or F64
  // How codes are made, of 128 x 128 tiles, from values in BF16: each weight's tiles begin at its first row.
  QuantSpec fp8 = {.format = Fp8Format::e4m3, .tile = ScaleTile::block_128x128, .power_of_2 = true};
  std::int64_t max_shard_bytes = kMaxShardBytes;
  std::function<void(std::int64_t bytes, std::int64_t of)> progress = {};  // data written so far
};

// Makes `dir` if need be and writes model.safetensors where everything fits into max_shard_bytes, else
// model-00001-of-0000N.safetensors and so on in the order of `weights`, and an index. Files of other shardings that stood there
// are removed. Each file appears complete or not at all, the index last. Throws Error{internal} "PATH: reason" for a full disk
// and the like. Takes a few MiB, or 128 rows of a weight in FP8.
void write_weight_files(const std::filesystem::path& dir, const std::vector<OutputWeight>& weights, const OutputForm& form,
                        const WeightValues& values);

}  // namespace octet::checkpoint
