#include "octet/checkpoint/block_fp8.h"

#include <algorithm>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/kernels/quantize/decode_table.h"

namespace octet::checkpoint {
namespace {

constexpr std::int64_t kCodesAtATime = 1 << 16;

// A JSON value from a file, printed for an error message.
std::string shown(const nlohmann::json& value) {
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.is_object() ? "an object" : in_quotes(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string scale_name(const std::string& weight) { return weight + "_scale_inv"; }

Shape block_scale_shape(std::int64_t rows, std::int64_t cols) { return {ceil_div(rows, kBlock), ceil_div(cols, kBlock)}; }

bool is_block_fp8(const nlohmann::json& config, const std::string& source) {
  if (!config.is_object() || !config.contains("quantization_config")) return false;
  const nlohmann::json& quantisation = config["quantization_config"];
  if (quantisation.is_null()) return false;
  const std::string where = source + ": quantization_config";
  demand(quantisation.is_object(), ExitCode::data, where, " is not an object but ", shown(quantisation));
  const auto expect = [&](const char* key, const nlohmann::json& wanted, bool required) {
    const auto found = quantisation.find(key);
    const bool absent = found == quantisation.end() || found->is_null();
    if (absent && !required) return;
    demand(!absent, ExitCode::data, where, " has no ", key,
           "; octet reads quant_method \"fp8\" with weight_block_size [128, 128]");
    demand(*found == wanted, ExitCode::data, where, ": ", key, " = ", shown(*found), " is not supported (", wanted.dump(), ")");
  };
  expect("quant_method", "fp8", true);
  expect("weight_block_size", {kBlock, kBlock}, true);
  expect("activation_scheme", "dynamic", false);
  expect("fmt", "e4m3", false);
  return true;
}

Json block_fp8_config(const std::vector<std::string>& plain) {
  return {{"quant_method", "fp8"},
          {"activation_scheme", "dynamic"},
          {"fmt", "e4m3"},
          {"weight_block_size", {kBlock, kBlock}},
          {"modules_to_not_convert", plain}};
}

void decode_blocks(std::span<const std::uint8_t> codes, std::int64_t begin, std::int64_t cols, std::span<const float> scales,
                   float* out) {
  const std::int64_t blocks = ceil_div(cols, kBlock);
  parallel_ranges(static_cast<std::int64_t>(codes.size()), kCodesAtATime, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to;) {
      const std::int64_t row = (begin + i) / cols, col = (begin + i) % cols;
      const std::int64_t end = std::min(to, i + std::min(kBlock - col % kBlock, cols - col));
      const float scale = scales[static_cast<std::size_t>(row / kBlock * blocks + col / kBlock)];
      for (; i < end; ++i) out[i] = kernels::kDecodeE4M3[codes[static_cast<std::size_t>(i)]] * scale;
    }
  });
}

}  // namespace octet::checkpoint
