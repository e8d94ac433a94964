// Converts a model directory, an adapter directory of PEFT or a checkpoint to a model directory. Works tensor by tensor and never
// holds the whole model in memory.
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

// A model without memory, for the names and shapes of its tensors. `names` excludes adapters and points into `model`.
struct DescribedModel {
  explicit DescribedModel(const models::DecoderConfig& config, const models::Adapters& adapters = {});
  std::unique_ptr<models::Decoder> model;
  parallel::NameTable names;
};

enum class WeightType : std::uint8_t { bf16, fp32, fp8 };

struct ConvertOptions {
  std::filesystem::path output;  // the directory to create
  WeightType type = WeightType::bf16;
  std::int64_t max_shard_bytes = checkpoint::kMaxShardBytes;
  std::function<void(std::int64_t bytes, std::int64_t of)> progress = {};
};

struct Converted {
  std::int64_t parameters = 0;
  std::int64_t fp8_matrices = 0;        // matrices written in FP8
  std::vector<std::string> ragged;      // names of FP8 matrices with a dim that is not a multiple of 128
  std::vector<std::string> not_finite;  // names of tensors with NaN or infinity among their values
};

// Converts `source`, a Hugging Face directory (in any form that ModelWeights reads), an adapter directory, or a checkpoint.
// Adapters are added to the weights of the model beneath them; a warning says if these are decoded from FP8 codes. Writes:
//   - the weights in BF16 (rounded to nearest even) or F32. With WeightType::fp8, the linears of the blocks are E4M3 codes with
//   128 x 128
//     scales, cast like weights of the recipe fp8_block, each tensor of the directory separately; the other weights are BF16;
//   - config.json: of a directory, its own with a new dtype and quantization_config; of a checkpoint, as the model family writes
//   it;
//   - generation_config.json and the tokenizer's files of the directory, or of the directory with which the checkpoint's run
//   began.
// The output directory appears only when it is complete. Throws one Error{data} that lists all missing, unexpected and misshapen
// tensors, and Error{config} if the output already exists.
Converted convert_model(const std::filesystem::path& source, const ConvertOptions& options);

// Writes the adapters of a checkpoint, or of an adapter directory, as an adapter directory of PEFT. The output directory appears
// only when it is complete. If the source is a checkpoint, the model beneath its adapters need not exist any more; a
// warning then says so. Throws Error{config} if the checkpoint's run has no [lora], or the output already exists.
void export_adapter(const std::filesystem::path& source, const std::filesystem::path& output);

}  // namespace octet::train
