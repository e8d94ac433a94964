#include "octet/base/json.h"
#include "octet/checkpoint/weight_files.h"

#include <cmath>

#include "checkpoint/files.h"
#include "octet/base/rng.h"
#include "octet/checkpoint/model_weights.h"

namespace octet::checkpoint {
namespace {

using Json = nlohmann::json;

float value_of(std::size_t number, std::int64_t i) {
  return std::ldexp(
      static_cast<float>(Rng(3, RngStream::test, static_cast<std::uint32_t>(number)).uniform(static_cast<std::uint64_t>(i))) -
          0.5f,
      static_cast<int>(i % 9));
}

const WeightValues kValues = [](std::size_t number, std::int64_t begin, std::int64_t count, DType to, void* out) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(value_of(number, begin + i));
  convert(DType::f32, values.data(), to, out, count);
};

// Each value is read back within half a step of E4M3. (end_to_end/convert_oracle.py compares the files with another
// implementation bit for bit.)
TEST(WeightFiles, MatricesInFp8AreReadBack) {
  const TemporaryFolder folder;
  const std::vector<OutputWeight> weights = {
      {"a", {300, 200}, true}, {"b", {7}, false}, {"c", {129, 1}, true}, {"d", {1200, 1024}, true}, {"e", {3, 5}, false}};
  std::vector<std::pair<std::int64_t, std::int64_t>> progress;
  write_weight_files(folder.path(), weights,
                     {.progress = [&](std::int64_t done, std::int64_t total) { progress.emplace_back(done, total); }}, kValues);
  folder.write("config.json", R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})");
  const ModelWeights read = ModelWeights::open(folder.path());
  EXPECT_EQ(read.names(), (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  for (std::size_t number = 0; number < weights.size(); ++number) {
    const OutputWeight& weight = weights[number];
    EXPECT_EQ(read.find(weight.name)->dtype, weight.fp8 ? DType::f8_e4m3 : DType::bf16);
    WeightReader reader(read, weight.name);
    ASSERT_EQ(reader.elements(), weight.shape.elements());
    std::vector<float> values(static_cast<std::size_t>(reader.elements()));
    reader.read(0, reader.elements(), DType::f32, values.data());
    for (std::int64_t i = 0; i < reader.elements(); ++i) {
      const auto expected = static_cast<float>(BFloat16(value_of(number, i)));
      // The bound is half a unit of a mantissa of three bits. For subnormals it is half their unit in a block whose largest
      // element is at most 128.
      const float bound = weight.fp8 ? std::max(std::abs(expected) / 16, std::ldexp(128.0f / 448.0f * 2, -10)) : 0.0f;
      ASSERT_LE(std::abs(values[static_cast<std::size_t>(i)] - expected), bound)
          << weight.name << ", element " << i << ": " << expected;
    }
  }
  EXPECT_EQ(progress.back().first, progress.back().second);
  const std::int64_t codes = 300 * 200 + 129 + 1200 * 1024, scales = 4 * (3 * 2 + 2 + 10 * 8), floats = 2 * (7 + 15);
  EXPECT_EQ(progress.back().second, codes + scales + floats);
}

TEST(WeightFiles, CodesAndScalesGoToOneShard) {
  const TemporaryFolder folder;
  write_weight_files(folder.path(), {{"a", {10, 10}, true}, {"b", {10, 10}, true}, {"c", {10, 10}, false}},
                     {.max_shard_bytes = 210}, kValues);
  const Json index = json_of(slurp(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 104 + 104 + 200);
  EXPECT_EQ(index["weight_map"], (Json{{"a", "model-00001-of-00002.safetensors"},
                                       {"a_scale_inv", "model-00001-of-00002.safetensors"},
                                       {"b", "model-00001-of-00002.safetensors"},
                                       {"b_scale_inv", "model-00001-of-00002.safetensors"},
                                       {"c", "model-00002-of-00002.safetensors"}}));
}

}  // namespace
}  // namespace octet::checkpoint
