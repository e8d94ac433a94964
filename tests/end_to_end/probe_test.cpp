// `octet probe` against transformers: logits, loss and every gradient of the goldens that tools/make_*_goldens.py make, a folder a family.
#include <gtest/gtest.h>

#include <cmath>

#include "octet/checkpoint/safetensors.h"
#include "support/near.h"
#include "support/program.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;

// |a - b| / |b|, Frobenius.
double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, LogitsLossAndGradientsAgreeWithTransformers) {
  const fs::path folder = fs::path(OCTET_TEST_DATA) / GetParam();
  const TemporaryFolder temporary;
  const fs::path output = temporary.path() / "out.safetensors";
  const ProgramResult run = run_program("probe --model '" + (folder / "model").string() + "' --tokens '" +
                                        (folder / "tokens.safetensors").string() + "' --recipe fp32 --device cpu --grads --output '" +
                                        output.string() + "'");
  ASSERT_EQ(run.code, 0) << run.err;
  const SafetensorsFile expected = SafetensorsFile::open(folder / "expected.safetensors");
  const SafetensorsFile actual = SafetensorsFile::open(output);
  ASSERT_EQ(actual.tensors().size(), expected.tensors().size());
  for (const checkpoint::TensorInfo& info : expected.tensors()) {
    ASSERT_TRUE(actual.find(info.name)) << info.name;
    const Tensor a = actual.get(info.name), e = expected.get(info.name);
    ASSERT_EQ(a.shape, e.shape) << info.name;
    // The contract's bound; FP32 itself leaves about 1e-6.
    EXPECT_LT(relative_distance(values_of(a), values_of(e)), 1e-4) << info.name;
  }
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const std::string family : {"llama", "mistral", "mixtral", "gpt_neox"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(OCTET_TEST_DATA) / family))
      names.push_back(family + "/" + entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Transformers, Golden, ::testing::ValuesIn(golden_names()), [](const auto& param) {
  std::string name = param.param;
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '/'; }, '_');
  return name;
});

}  // namespace
}  // namespace octet::testing
