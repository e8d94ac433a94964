// Compares Octet with transformers on the goldens of tools/make_*_goldens.py. `octet probe` gives logits, loss and every
// gradient, and a run prints the loss of the weights before step 1.
#include <gtest/gtest.h>

#include <cmath>
#include <span>

#include "octet/checkpoint/safetensors.h"
#include "octet/models/registry.h"
#include "support/near.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;

// Returns |a - b| / |b| in the Frobenius norm; 0 if a and b are equal, even if both are 0, as the gradient of an expert that no
// token chose.
double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, LogitsLossAndGradientsAgreeWithTransformers) {
  const fs::path folder = fs::path(golden_dir()) / GetParam();
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
    // The project promises this bound. FP32 itself errs by about 1e-6.
    EXPECT_LT(relative_distance(values_of(a), values_of(e)), 1e-4) << info.name;
  }
}

// The loss and two rms values of logits [T, V] in FP64. The target of each token is the next one; the last token has none.
struct NextTokens {
  double loss = 0;         // mean over tokens, nats
  double sensitivity = 0;  // rms over tokens of |p - e_target|, which says how far a token's loss moves with its logits
  double logit = 0;        // rms of a logit
};

NextTokens next_tokens(const std::vector<double>& logits, const std::vector<std::int32_t>& tokens) {
  const std::size_t count = tokens.size() - 1, vocab = logits.size() / tokens.size();
  NextTokens result;
  for (std::size_t t = 0; t < count; ++t) {
    const std::span<const double> row(&logits[t * vocab], vocab);
    const auto target = static_cast<std::size_t>(tokens[t + 1]);
    double sum = 0;
    for (const double z : row) sum += std::exp(z);
    result.loss += std::log(sum) - row[target];
    for (std::size_t i = 0; i < vocab; ++i) {
      const double slope = std::exp(row[i]) / sum - (i == target ? 1.0 : 0.0);
      result.sensitivity += slope * slope;
      result.logit += row[i] * row[i];
    }
  }
  const auto n = static_cast<double>(count);
  return {result.loss / n, std::sqrt(result.sensitivity / n), std::sqrt(result.logit / (n * static_cast<double>(vocab)))};
}

// The first row of a golden's tokens becomes the held-out text of a run that starts from its model. The loss before step 1 must
// be the mean loss of these tokens by the logits of transformers.
TEST_P(Golden, LossBeforeStepOneIsThatOfTransformers) {
  const fs::path golden = fs::path(golden_dir()) / GetParam();
  const TemporaryFolder folder;
  const auto first_row = [](const Tensor& logits) {
    std::vector<double> values = values_of(logits);
    values.resize(values.size() / static_cast<std::size_t>(logits.shape[0]));
    return values;
  };
  const SafetensorsFile given = SafetensorsFile::open(golden / "tokens.safetensors");
  const Tensor ids = given.get("tokens");
  const std::vector<std::int32_t> tokens(ids.as<std::int64_t>(), ids.as<std::int64_t>() + ids.shape[1]);
  write_corpus(folder / "text", {std::string(tokens.begin(), tokens.end())});  // a byte each: the vocabulary is smaller than 256
  write_text(folder / "run.toml",
             concat("[model]\ninit_from = \"", (golden / "model").string(), "\"\n[training]\nseq_len = ", tokens.size() - 1,
                    "\nglobal_batch_size = 1\nmicro_batch_size = 1\nsteps = 1\n", "[[data.source]]\npath = \"text\"\n",
                    "[[data.source]]\npath = \"text\"\nsplit = \"validation\"\n"));
  const auto said = [&](const std::string& recipe) {
    const ProgramResult run = run_program(
        "train run.toml --run.device=cpu --precision.recipe=" + recipe + " --run.output_dir=" + recipe, folder.path());
    EXPECT_EQ(run.code, 0) << run.err;
    const std::string says = " before step 1, in " + recipe + ": ";
    const std::size_t at = run.err.find(says);
    if (at == std::string::npos) ADD_FAILURE() << run.err;
    return at == std::string::npos ? 0.0 : std::stod(run.err.substr(at + says.size()));
  };
  const SafetensorsFile expected = SafetensorsFile::open(golden / "expected.safetensors");
  const NextTokens exact = next_tokens(first_row(expected.get("logits")), tokens);
  // The project promises this bound. FP32 and the six printed decimals err by about 1e-6.
  EXPECT_NEAR(said("fp32"), exact.loss, 1e-4);

  // In BF16 the run prints the loss of the BF16 logits.
  const std::string output = (folder / "bf16.safetensors").string();
  const ProgramResult probe =
      run_program("probe --model '" + (golden / "model").string() + "' --tokens '" + (golden / "tokens.safetensors").string() +
                  "' --recipe bf16 --device cpu --output '" + output + "'");
  ASSERT_EQ(probe.code, 0) << probe.err;
  const double bf16 = said("bf16");
  EXPECT_NEAR(bf16, next_tokens(first_row(SafetensorsFile::open(output).get("logits")), tokens).loss, 1e-4);
  // The BF16 logits differ from the exact ones by roundings only. A rounding errs by 2^-9.3 of the value in the mean square if
  // mantissas are evenly distributed; the bound takes 2^-9. There are at most sixteen independent roundings in each layer,
  // including those of its weights, and three at the head. Softmax and products of two rounded operands make up to twice as much
  // of them. The roundings do not depend on the targets either. If all tokens erred alike, the mean loss would move by the error
  // of a logit times the slope. In a mixture, a token may go to another expert, which is more than a rounding.
  const models::DecoderConfig config = models::read_config(golden / "model");
  if (config.experts > 0) return;
  const double roundoff = 2 * std::sqrt(16 * static_cast<double>(config.layers) + 3) * 0x1p-9;
  EXPECT_NEAR(bf16, exact.loss, roundoff * exact.logit * exact.sensitivity);
}

// Returns the mean loss of the tokens that have a target, of logits [T, V].
double mean_loss(const std::vector<double>& logits, const std::vector<std::int64_t>& targets) {
  const std::size_t vocab = logits.size() / targets.size();
  double loss = 0, count = 0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    const std::span<const double> row(&logits[t * vocab], vocab);
    double sum = 0;
    for (const double z : row) sum += std::exp(z);
    loss += std::log(sum) - row[static_cast<std::size_t>(targets[t])];
    ++count;
  }
  return loss / count;
}

// The balance loss of transformers is a mean over all tokens, however many of them have a target. There is no z loss.
TEST(Probe, AddsTheBalanceLossOfTransformers) {
  const fs::path golden = fs::path(golden_dir()) / "mixtral/balance";
  const TemporaryFolder folder;
  const SafetensorsFile given = SafetensorsFile::open(golden / "tokens.safetensors"),
                        expected = SafetensorsFile::open(golden / "expected.safetensors");
  const Tensor tokens = given.get("tokens");
  const auto ids_of = [](const Tensor& t) {
    return std::vector<std::int64_t>(t.as<std::int64_t>(), t.as<std::int64_t>() + t.elements());
  };
  const std::vector<double> logits = values_of(expected.get("logits"));
  const double balance = values_of(expected.get("loss"))[0] - mean_loss(logits, ids_of(given.get("targets")));
  ASSERT_GT(balance, 0.1);

  fs::copy(golden / "model", folder / "model");
  Json config = json_of(read_file(golden / "model/config.json"));
  config["router_z_loss_coef"] = 0.5;
  write_text(folder / "model/config.json", config.dump());
  const auto loss_of = [&](std::vector<checkpoint::NamedTensor> input) {
    checkpoint::write_safetensors(folder / "in.safetensors", std::move(input));
    const ProgramResult run =
        run_program("probe --model model --tokens in.safetensors --recipe fp32 --output out.safetensors", folder.path());
    EXPECT_EQ(run.code, 0) << run.err;
    return values_of(SafetensorsFile::open(folder / "out.safetensors").get("loss"))[0];
  };
  std::vector<std::int64_t> targets = ids_of(tokens);  // by default the next tokens
  targets.erase(targets.begin());
  targets.push_back(-100);
  EXPECT_NEAR(loss_of({{"tokens", tokens}}), mean_loss(logits, targets) + balance, 1e-4);
  std::fill(targets.begin() + 3, targets.end(), -100);
  const Tensor few(targets.data(), DType::i64, tokens.shape);
  EXPECT_NEAR(loss_of({{"tokens", tokens}, {"targets", few}}), mean_loss(logits, targets) + balance, 1e-4);
}

// A key of a run that would change nothing is refused.
TEST(Probe, SetsOnlyTheKeysThatItUses) {
  const TemporaryFolder folder;
  const std::string mha = golden_dir() + "/llama/mha";
  const std::string probe =
      concat("probe --model '", mha, "/model' --tokens '", mha, "/tokens.safetensors' --recipe fp32 --output o --set ");
  for (const std::string set : {"model.rope_theta=5", "model.rope_scaling.factor=2", "lora.rank=2", "data.document_mask=true",
                                "parallel.tensor=2", "training.seq_len=8", "lr_scheduler.decay=linear", "run.output_dir=x"})
    EXPECT_TRUE(refused(run_program(probe + set, folder.path()), 2,
                        "--set " + set + ": this command does not use the key; it uses precision.*, "));
  EXPECT_TRUE(refused(run_program(probe + "run.device=cpu", folder.path()), 2, "--set run.device=cpu: --device says which"));
  EXPECT_TRUE(refused(run_program(probe + "precision.recipe=bf16", folder.path()), 2,
                      "--set precision.recipe=bf16: --recipe says which"));
  EXPECT_TRUE(refused(run_program(probe + "modle.rope_theta=5", folder.path()), 2, "did you mean model"));
  for (const std::string set :
       {"optimizer.lr=0.1", "activation_checkpoint.mode=full", "training.micro_batch_size=1", "run.threads=1"})
    EXPECT_EQ(run_program(probe + set + " --steps 1", folder.path()).code, 0) << set;
}

// Only FP8 linears are dumped: a warning says so if there is none.
TEST(Probe, WarnsOfADumpWithoutOperands) {
  const TemporaryFolder folder;
  const std::string mha = golden_dir() + "/llama/mha";
  const auto dump = [&](const std::string& recipe, const std::string& pattern) {
    const ProgramResult result = run_program(concat("probe --model '", mha, "/model' --tokens '", mha,
                                                    "/tokens.safetensors' --steps 1 --output o --recipe ", recipe, " --dump '",
                                                    pattern, "'"),
                                             folder.path());
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  for (const std::string recipe : {"fp32", "bf16"})
    EXPECT_NE(dump(recipe, "*layers.0*").find("no linear that matches computes in FP8 with recipe " + recipe), std::string::npos);
  EXPECT_NE(dump("fp8_current", "lm_head").find("no linear that matches computes in FP8"), std::string::npos);
  EXPECT_EQ(dump("fp8_current", "model.layers.[0]*"), "");
  EXPECT_TRUE(SafetensorsFile::open(folder / "o").find("1.0.model.layers.0.mlp.down_proj.y"));
}

// Returns FAMILY/NAME of each folder that holds a model.
std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& family : fs::directory_iterator(golden_dir())) {
    for (const auto& golden : fs::directory_iterator(family)) {
      if (fs::exists(golden.path() / "model" / "config.json")) names.push_back(fs::relative(golden, golden_dir()).string());
    }
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
