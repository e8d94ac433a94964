#include "octet/checkpoint/model_weights.h"

#include <cmath>
#include <limits>

#include "checkpoint/files.h"
#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/checkpoint/block_fp8.h"

namespace octet::checkpoint {
namespace {

constexpr const char* kBlockConfig = R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})";

// A model directory with one matrix of random codes without NaN, and random scales.
struct QuantisedMatrix {
  QuantisedMatrix(std::int64_t rows_, std::int64_t cols_) : rows(rows_), cols(cols_) {
    folder.write("config.json", kBlockConfig);
    codes = memory.tensor(DType::f8_e4m3, {rows, cols});
    scales = memory.tensor(DType::f32, {ceil_div(rows, 128), ceil_div(cols, 128)});
    const Rng rng(5, RngStream::test);
    for (std::int64_t i = 0; i < codes.elements(); ++i) {
      const auto code = static_cast<std::uint8_t>(rng.words(static_cast<std::uint64_t>(i))[0] >> 7);
      codes.as_bytes()[i] = (code & 0x7F) == 0x7F ? 0 : code;
    }
    for (std::int64_t i = 0; i < scales.elements(); ++i) {
      scales.as<float>()[i] = std::ldexp(1.0f + static_cast<float>(i) / 1024, static_cast<int>(i % 7) - 10);
    }
    save();
  }
  void save() const { write_safetensors(folder / "model.safetensors", {{"w", codes}, {"w_scale_inv", scales}}); }
  // Computes element i by the definition of the format.
  float at(std::int64_t i) const {
    const std::int64_t row = i / cols, col = i % cols;
    return decode_fp8(Fp8Format::e4m3, codes.as_bytes()[i]) * scales.as<float>()[row / 128 * ceil_div(cols, 128) + col / 128];
  }

  TemporaryFolder folder;
  Memory memory;
  std::int64_t rows, cols;
  Tensor codes, scales;
};

// F64 becomes BF16 and F16 in one rounding: the value is the nearest, and even where two are.
TEST(ModelWeights, DoublesAreRoundedOnce) {
  const auto converted = [](double x, DType dtype) {
    BFloat16 brain;
    Float16 half;
    convert(DType::f64, &x, dtype, dtype == DType::bf16 ? static_cast<void*>(&brain) : &half, 1);
    return static_cast<double>(dtype == DType::bf16 ? static_cast<float>(brain) : static_cast<float>(half));
  };
  const Rng rng(7, RngStream::test);
  for (const auto& [dtype, bits, least] : {std::tuple(DType::bf16, 8, -133), std::tuple(DType::f16, 11, -24)}) {
    for (std::uint64_t i = 0; i < 4000; ++i) {
      const auto word = rng.words(i);
      const int exponent = static_cast<int>(word[0] % static_cast<unsigned>(20 - least)) + least - 2;
      const double ulp = std::ldexp(1.0, std::max(exponent - bits + 1, least));
      // A tie between two values, and the doubles beside it.
      const double below = std::floor(std::ldexp(1.0 + word[1] * 0x1p-32, exponent) / ulp) * ulp, tie = below + ulp / 2;
      const double even = std::fmod(below / ulp, 2.0) == 0 ? below : below + ulp;
      for (const double sign : {1.0, -1.0}) {
        if (below + ulp > 65504.0) continue;
        ASSERT_EQ(converted(sign * tie, dtype), sign * even) << tie;
        ASSERT_EQ(converted(sign * std::nextafter(tie, 0.0), dtype), sign * below) << tie;
        ASSERT_EQ(converted(sign * std::nextafter(tie, 1e9), dtype), sign * (below + ulp)) << tie;
      }
    }
    EXPECT_EQ(converted(1e300, dtype), std::numeric_limits<double>::infinity());
    EXPECT_EQ(converted(-std::numeric_limits<double>::infinity(), dtype), -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(converted(std::numeric_limits<double>::quiet_NaN(), dtype)));
    EXPECT_EQ(converted(1e-300, dtype), 0.0);
  }
  EXPECT_EQ(converted(1 + 0x1p-8 + 0x1p-40, DType::bf16), 1.0078125);
}

TEST(ModelWeights, CodesTimesScalesFromAnyElementOn) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int, int>>{{128, 128}, {1, 1}, {300, 200}, {127, 129}, {5, 1000}, {1500, 1024}}) {
    const QuantisedMatrix matrix(rows, cols);
    const ModelWeights weights = ModelWeights::open(matrix.folder.path());
    EXPECT_EQ(weights.names(), std::vector<std::string>{"w"}) << "scales are no weights of the model";
    EXPECT_EQ(weights.fault_of("w"), "");
    WeightReader reader(weights, "w");
    const std::int64_t count = reader.elements();
    ASSERT_EQ(count, std::int64_t{rows} * cols);
    for (const std::int64_t begin : {std::int64_t{0}, count / 3, count - 1}) {
      std::vector<float> wide(static_cast<std::size_t>(count - begin));
      std::vector<BFloat16> narrow(wide.size());
      reader.read(begin, count - begin, DType::f32, wide.data());
      reader.read(begin, count - begin, DType::bf16, narrow.data());
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const float expected = matrix.at(begin + static_cast<std::int64_t>(i));
        ASSERT_EQ(wide[i], expected) << rows << " x " << cols << ", element " << i << " from " << begin;
        ASSERT_EQ(narrow[i], BFloat16(expected));
      }
    }
  }
}

// Published models have scales in these dtypes. The scales of the matrix are exact in all of them.
TEST(ModelWeights, ScalesMayHaveAnyFloatingPointType) {
  QuantisedMatrix matrix(300, 200);
  const Tensor exact = matrix.scales;
  for (std::int64_t i = 0; i < exact.elements(); ++i) exact.as<float>()[i] = static_cast<float>(i + 1) / 64;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor scales = matrix.memory.tensor(dtype, exact.shape);
    convert(DType::f32, exact.data, dtype, scales.data, exact.elements());
    write_safetensors(matrix.folder / "model.safetensors", {{"w", matrix.codes}, {"w_scale_inv", scales}});
    const ModelWeights weights = ModelWeights::open(matrix.folder.path());
    ASSERT_EQ(weights.fault_of("w"), "");
    std::vector<float> values(300 * 200);
    WeightReader(weights, "w").read(0, 300 * 200, DType::f32, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], matrix.at(static_cast<std::int64_t>(i))) << i;
  }
}

TEST(ModelWeights, SaysWhyValuesCannotBeRead) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor codes = memory.tensor(DType::f8_e4m3, {200, 3});
  const auto fault = [&](const std::vector<NamedTensor>& tensors, const char* config = kBlockConfig) {
    folder.write("config.json", config);
    write_safetensors(folder / "model.safetensors", tensors);
    const ModelWeights weights = ModelWeights::open(folder.path());
    return weights.fault_of("w");
  };
  EXPECT_EQ(fault({{"w", codes}, {"w_scale_inv", memory.tensor(DType::f32, {2, 1})}}), "");
  EXPECT_EQ(fault({{"w", codes}}), "\"w\" is F8_E4M3 without \"w_scale_inv\"");
  EXPECT_EQ(fault({{"w", codes}, {"w_scale_inv", memory.tensor(DType::f32, {1, 2})}}),
            "\"w_scale_inv\" is F32 [1, 2], expected F32, BF16, F16 or F64 [2, 1]");
  EXPECT_EQ(fault({{"w", codes}, {"w_scale_inv", memory.tensor(DType::f32, {2})}}),
            "\"w_scale_inv\" is F32 [2], expected F32, BF16, F16 or F64 [2, 1]");
  EXPECT_EQ(fault({{"w", codes}, {"w_scale_inv", memory.tensor(DType::u8, {2, 1})}}),
            "\"w_scale_inv\" is U8 [2, 1], expected F32, BF16, F16 or F64 [2, 1]");
  EXPECT_EQ(fault({{"w", codes}, {"w_scale_inv", memory.tensor(DType::f32, {2, 1})}}, "{}"),
            "\"w\" is F8_E4M3, but config.json has no quantization_config");
  EXPECT_EQ(fault({{"w", memory.tensor(DType::f8_e4m3, {2, 3, 4})}, {"w_scale_inv", memory.tensor(DType::f32, {1, 1})}}),
            "\"w\" is F8_E4M3 [2, 3, 4], expected a matrix");
  EXPECT_EQ(fault({{"w", memory.tensor(DType::f8_e5m2, {2, 3})}}), "\"w\" is F8_E5M2, expected F32, BF16, F16 or F64");
  EXPECT_EQ(fault({{"w", memory.tensor(DType::bf16, {2, 3})}, {"w_scale_inv", memory.tensor(DType::f32, {1, 1})}}),
            "\"w\" is BF16, yet there is \"w_scale_inv\"");
}

TEST(ModelWeights, ScalesMustBeNumbers) {
  const QuantisedMatrix matrix(300, 200);
  const std::string file = (matrix.folder / "model.safetensors").string();
  for (const auto& [scale, text] : std::vector<std::pair<float, std::string>>{
           {std::numeric_limits<float>::quiet_NaN(), "nan"}, {std::numeric_limits<float>::infinity(), "inf"}, {-1.0f, "-1"}}) {
    matrix.scales.as<float>()[4] = scale;
    matrix.save();
    const ModelWeights weights = ModelWeights::open(matrix.folder.path());
    EXPECT_EQ(error_of(ExitCode::data, [&] { WeightReader(weights, "w"); }),
              file + ": tensor \"w_scale_inv\": element 4 is " + text + "; a scale must be finite and not negative");
  }
  matrix.scales.as<float>()[4] = 0.0f;  // some programs write this scale for a block of zeros
  matrix.save();
  const ModelWeights weights = ModelWeights::open(matrix.folder.path());
  EXPECT_EQ(WeightReader(weights, "w").elements(), 60000);
}

TEST(ModelWeights, OtherQuantisationsAreRefusedByName) {
  const TemporaryFolder folder;
  Memory memory;
  write_safetensors(folder / "model.safetensors", {{"w", memory.tensor(DType::f32, {1})}});
  const auto with = [&](const std::string& quantisation) {
    folder.write("config.json", R"({"quantization_config":)" + quantisation + "}");
    return error_of(ExitCode::data, [&] { ModelWeights::open(folder.path()); });
  };
  const std::string where = (folder / "config.json").string() + ": quantization_config";
  EXPECT_EQ(with(R"({"quant_method":"gptq","bits":4})"), where + ": quant_method = \"gptq\" is not supported (\"fp8\")");
  EXPECT_EQ(with(R"({"quant_method":"fp8","weight_block_size":[64,128]})"),
            where + ": weight_block_size = \"[64,128]\" is not supported ([128,128])");
  EXPECT_EQ(with(R"({"quant_method":"fp8"})"),
            where + " has no weight_block_size; octet reads quant_method \"fp8\" with weight_block_size [128, 128]");
  EXPECT_EQ(with(R"({"quant_method":"fp8","weight_block_size":[128,128],"activation_scheme":"static"})"),
            where + ": activation_scheme = \"static\" is not supported (\"dynamic\")");
  EXPECT_EQ(with(R"({"quant_method":"fp8","weight_block_size":[128,128],"fmt":"e5m2"})"),
            where + ": fmt = \"e5m2\" is not supported (\"e4m3\")");
  EXPECT_EQ(with("\"fp8\""), where + " is not an object but \"fp8\"");
  EXPECT_EQ(with(R"({"quant_method":{"a":1}})"), where + ": quant_method = an object is not supported (\"fp8\")");
  folder.write("config.json", R"({"quantization_config":null})");
  EXPECT_EQ(ModelWeights::open(folder.path()).names().size(), 1u);
  folder.write("config.json", "{");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { ModelWeights::open(folder.path()); }), "not valid JSON"));
}

// If a file becomes shorter after it was opened, reading it is an error and not a signal.
TEST(ModelWeights, AFileCutWhileItIsReadIsAnError) {
  const TemporaryFolder folder;
  Memory memory;
  write_safetensors(folder / "model.safetensors", {{"w", memory.tensor(DType::f32, {5000})}});
  const ModelWeights weights = ModelWeights::open(folder.path());
  WeightReader reader(weights, "w");
  std::filesystem::resize_file(folder / "model.safetensors", 9000);
  std::vector<float> values(5000);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { reader.read(0, 5000, DType::f32, values.data()); }),
                       "model.safetensors: ends at byte 9000 of "));
}

// Unaligned data in the file are read like aligned data.
TEST(ModelWeights, DataMayStandAnywhere) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const float values[] = {1.5f, -2.0f};
  std::string data(9, '\0');
  std::memcpy(data.data() + 1, values, 8);
  folder.write("model.safetensors", safetensors_bytes(header, data));
  const ModelWeights weights = ModelWeights::open(folder.path());
  float read[2] = {};
  WeightReader(weights, "w").read(0, 2, DType::f32, read);
  EXPECT_EQ(read[0], 1.5f);
  EXPECT_EQ(read[1], -2.0f);
}

}  // namespace
}  // namespace octet::checkpoint
