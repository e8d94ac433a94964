// Reads any bytes as the index of a model directory, as its config.json, and as FP8 codes with scales. This must give
// Error{data}, or names of files within the directory and values that are the codes times the scales.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/require.h"
#include "octet/checkpoint/block_fp8.h"
#include "octet/checkpoint/model_weights.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/models/registry.h"

namespace {

void hold(bool holds) {
  if (!holds) std::abort();
}

template <class F>
void guarded(const F& act) {
  try {
    act();
  } catch (const octet::Error& error) {
    hold(error.code() == octet::ExitCode::data);
    hold(std::string(error.what()).find('\n') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octet::checkpoint;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  guarded([&] {
    for (const auto& [name, file] : parse_index(text, "fuzz.index.json")) {
      hold(is_file_name(file) && file.find('/') == std::string::npos && file != "..");
    }
  });
  guarded([&] {
    const nlohmann::json config = octet::parse_json(text, "fuzz.json");
    is_block_fp8(config, "fuzz.json");
    octet::models::parse_config(config, "fuzz.json");
  });
  if (size < 2) return 0;
  // The first byte chooses the number of columns of a matrix, the second the element at which reading begins.
  const std::int64_t cols = 1 + data[0] * 3, begin = data[1] * 7;
  const std::size_t count = size - 2;
  const std::vector<float> scales(
      static_cast<std::size_t>(block_scale_shape((begin + static_cast<std::int64_t>(count)) / cols + 1, cols).elements()), 2.0f);
  std::vector<float> out(count);
  decode_blocks({data + 2, count}, begin, cols, scales, out.data());
  for (std::size_t i = 0; i < count; ++i) {
    const float code = octet::decode_fp8(octet::Fp8Format::e4m3, data[2 + i]);
    hold(out[i] == 2 * code || (std::isnan(out[i]) && std::isnan(code)));
  }
  return 0;
}
