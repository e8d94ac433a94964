// Weights in FP8 on disk, as DeepSeek-V3 was published and vLLM, SGLang and transformers read them: a matrix NAME [R, C] of E4M3
// codes, and beside it NAME_scale_inv [ceil(R/128), ceil(C/128)] F32, one scale for 128 x 128 codes; a value is code * scale.
// config.json says so in its quantization_config.
// Source: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet::checkpoint {

inline constexpr std::int64_t kBlock = 128;  // rows and columns of a block

std::string scale_name(const std::string& weight);
// Of the scales of codes [R, C].
Shape block_scale_shape(std::int64_t rows, std::int64_t cols);

// Whether a config.json says that matrices are stored so; false when it says nothing of quantisation. Throws Error{data} with
// the name of any other method, block size, scheme or format of codes; `source` is the file.
bool is_block_fp8(const nlohmann::json& config, const std::string& source);

// The quantization_config of a model of which `plain` modules have matrices that are not quantised.
Json block_fp8_config(const std::vector<std::string>& plain);

// out[i] = element begin + i of codes [R, cols] in row-major order, whose codes are given, times its block's scale, in F32.
// `scales` are those of the whole matrix.
void decode_blocks(std::span<const std::uint8_t> codes, std::int64_t begin, std::int64_t cols, std::span<const float> scales,
                   float* out);

}  // namespace octet::checkpoint
