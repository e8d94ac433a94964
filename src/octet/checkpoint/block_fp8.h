// FP8 weights on disk, in the format of DeepSeek-V3, which vLLM, SGLang and transformers read. A matrix NAME [R, C] holds E4M3 codes.
// The tensor NAME_scale_inv [ceil(R/128), ceil(C/128)] holds one scale for each block of 128 x 128 codes; value = code * scale. Octet
// writes scales in F32. Published models also have them in BF16 or F16.
// The quantization_config of config.json declares the format.
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
// The shape of the scales of codes [rows, cols].
Shape block_scale_shape(std::int64_t rows, std::int64_t cols);

// Whether a config.json declares this format. Returns false if it declares no quantisation. Throws Error{data} for any other method,
// block size, activation scheme or code format. `source` is the file, for messages.
bool is_block_fp8(const nlohmann::json& config, const std::string& source);

// Returns the quantization_config of a model. The matrices of the modules in `plain` are not quantised.
Json block_fp8_config(const std::vector<std::string>& plain);

// Decodes a range of a matrix with `cols` columns: out[i] = codes[i] * scale of its block, in F32, where codes[i] is element begin + i
// of the matrix in row-major order. `scales` holds the scales of the whole matrix.
void decode_blocks(std::span<const std::uint8_t> codes, std::int64_t begin, std::int64_t cols, std::span<const float> scales,
                   float* out);

}  // namespace octet::checkpoint
