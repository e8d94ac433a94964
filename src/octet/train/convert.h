// From model directories and checkpoints to model directories, tensor by tensor: nothing is trained, and no model is in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/checkpoint/weight_files.h"
#include "octet/models/registry.h"

namespace octet::train {

// A model that is described and has no memory, for the names and shapes of its tensors. The names point into it.
struct DescribedModel {
  explicit DescribedModel(const models::DecoderConfig& config);
  std::unique_ptr<models::Decoder> model;
  parallel::NameTable names;
};

enum class WeightType : std::uint8_t { bf16, fp32, fp8 };

struct ConvertOptions {
  std::filesystem::path output;  // a new directory
  WeightType type = WeightType::bf16;
  std::int64_t max_shard_bytes = checkpoint::kMaxShardBytes;
  std::function<void(std::int64_t bytes, std::int64_t of)> progress = {};
};

struct Converted {
  std::int64_t parameters = 0;
  std::int64_t fp8_matrices = 0;
  std::vector<std::string> ragged;  // of those the ones whose dims are no multiples of 128
};

// Writes the model of a Hugging Face directory, in any form that ModelWeights reads, or of a checkpoint:
//   - weights in BF16 (to nearest even) or F32; with fp8 the linears of the blocks as E4M3 codes with 128 x 128 scales, as the
//     recipe fp8_block casts weights, each tensor of the directory on its own;
//   - config.json: a checkpoint's as the family writes it, a directory's as it was but for the dtype and quantization_config;
//   - generation_config.json of the directory (or the one that the run began with) and its tokenizer's files.
// The directory appears complete or not at all. Throws Error{data} for what is missing, extra or misshapen, all at once, and
// Error{config} where the output exists.
Converted convert_model(const std::filesystem::path& source, const ConvertOptions& options);

}  // namespace octet::train
