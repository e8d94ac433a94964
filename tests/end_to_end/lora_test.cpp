// Runs with [lora]: against PEFT's numbers, across a resume, exported and read again, and what is refused.
#include <algorithm>
#include <cmath>

#include "octet/checkpoint/safetensors.h"
#include "support/bounds.h"
#include "support/near.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;

// Copies an adapter of the goldens, and lets it name its model by a path that exists.
std::string put_adapter(const std::string& golden, const fs::path& to) {
  const fs::path from = fs::path(golden_dir()) / "lora" / golden / "adapter";
  fs::create_directories(to);
  fs::copy(from / "adapter_model.safetensors", to / "adapter_model.safetensors");
  Json config = json_of(read_file(from / "adapter_config.json"));
  const std::string model = config["base_model_name_or_path"];
  config["base_model_name_or_path"] = (fs::path(golden_dir()) / model).string();
  write_text(to / "adapter_config.json", config.dump());
  return (fs::path(golden_dir()) / model).parent_path().string();
}

class PeftGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(PeftGolden, LogitsLossAndGradientsAgreeWithPeft) {
  const TemporaryFolder folder;
  const std::string model = put_adapter(GetParam(), folder / "adapter");
  const ProgramResult run = run_program("probe --model adapter --tokens '" + model +
                                            "/tokens.safetensors' --recipe fp32 --device cpu --grads --output out.safetensors",
                                        folder.path());
  ASSERT_EQ(run.code, 0) << run.err;
  const SafetensorsFile expected = SafetensorsFile::open(fs::path(golden_dir()) / "lora" / GetParam() / "expected.safetensors");
  const SafetensorsFile actual = SafetensorsFile::open(folder / "out.safetensors");
  ASSERT_EQ(actual.tensors().size(), expected.tensors().size());
  for (const checkpoint::TensorInfo& info : expected.tensors()) {
    ASSERT_TRUE(actual.find(info.name)) << info.name;
    // The project promises this bound. FP32 itself errs by about 1e-6.
    EXPECT_TRUE(near_norm(values_of(actual.get(info.name)), values_of(expected.get(info.name)), 1e-4)) << info.name;
  }
}

// What Octet writes is what PEFT wrote: the same names and bytes, and the settings that decide what an adapter computes.
TEST_P(PeftGolden, IsWrittenAsPeftWritesIt) {
  const TemporaryFolder folder;
  put_adapter(GetParam(), folder / "adapter");
  const ProgramResult run = run_program("convert export --checkpoint adapter --output again --adapter", folder.path());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(tensors_of(folder / "again/adapter_model.safetensors"), tensors_of(folder / "adapter/adapter_model.safetensors"));
  const Json peft = json_of(read_file(folder / "adapter/adapter_config.json"));
  const Json octet = json_of(read_file(folder / "again/adapter_config.json"));
  for (const char* key :
       {"peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "bias", "fan_in_fan_out"})
    EXPECT_EQ(octet[key].dump(), peft[key].dump()) << key;
}

// The tokens of the golden as held-out text: two sequences, and the token that follows them.
void put_corpus(const fs::path& prefix, const std::vector<double>& tokens) {
  std::string bytes;
  for (const double id : tokens) bytes += static_cast<char>(id);
  write_corpus(prefix, {bytes + bytes.front()});
}

double evaluated(const ProgramResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  return result.code == 0 ? json_of(result.out)["eval_loss"].get<double>() : -1;
}

// PEFT's loss of the next tokens follows from its logits. The merged model sums the same products in another order: between the
// embedding and a logit lie about 512 roundings of sums.
TEST_P(PeftGolden, IsEvaluatedAsPeftAndTheMergedModelAre) {
  const TemporaryFolder folder;
  const std::string model = put_adapter(GetParam(), folder / "adapter");
  const SafetensorsFile input = SafetensorsFile::open(fs::path(model) / "tokens.safetensors");
  const SafetensorsFile peft = SafetensorsFile::open(fs::path(golden_dir()) / "lora" / GetParam() / "expected.safetensors");
  const std::vector<double> tokens = values_of(input.get("tokens")), logits = values_of(peft.get("logits"));
  put_corpus(folder / "corpus", tokens);
  const std::int64_t rows = input.get("tokens").shape[0], length = input.get("tokens").shape[1];
  const std::size_t vocab = logits.size() / tokens.size();
  double loss = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto row = std::span(logits).subspan(i * vocab, vocab);
    double sum = 0;
    for (const double logit : row) sum += std::exp(logit);
    loss += std::log(sum) - row[static_cast<std::size_t>(tokens[(i + 1) % tokens.size()])];
  }
  loss /= static_cast<double>(tokens.size());

  // [model] and [lora] of the file are those of another model, which the directory replaces.
  write_text(folder / "run.toml", tiny_toml() + "[lora]\nrank = 999\nalpha = 1\n");
  const std::string eval =
      concat("eval run.toml --json --precision.recipe=fp32 --data.split=0,1 --training.micro_batch_size=", rows,
             " --training.seq_len=", length, " --model ");
  const double of_adapter = evaluated(run_program(eval + "adapter", folder.path()));
  EXPECT_NEAR(of_adapter, loss, 1e-4 * loss) << "the project promises this bound";
  const double of_base = evaluated(run_program(concat(eval, "'", model, "/model'"), folder.path()));
  EXPECT_GT(std::abs(of_base - loss), 1e-3 * loss) << "without the adapter";
  ASSERT_EQ(run_program("convert export --checkpoint adapter --output merged --dtype fp32", folder.path()).code, 0);
  EXPECT_NEAR(evaluated(run_program(eval + "merged", folder.path())), of_adapter, gamma(512, kUnitRoundoffF32) * loss);
}

INSTANTIATE_TEST_SUITE_P(Cases, PeftGolden,
                         ::testing::Values("llama-all", "llama-some", "llama-one-layer", "qwen3-all", "gpt_neox-all"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A model that a short run has made, and a run with adapters on it.
class Lora : public ::testing::Test {
 protected:
  explicit Lora(const std::string& base = "") {
    EXPECT_EQ(run_.train("--run.output_dir=base --training.steps=8 " + base).code, 0);
    std::string toml = read_file(run_ / "run.toml");
    const std::size_t begin = toml.find("[model]"), end = toml.find("[[data");
    toml.replace(begin, end - begin, "[model]\ninit_from = \"base/model\"\n[lora]\nrank = 4\nalpha = 6\n");
    write_text(run_ / "lora.toml", toml);
  }
  ProgramResult train(const std::string& options = "") const {
    return run_.run("train lora.toml --training.steps=15 --checkpoint.keep_latest_k=0 " + options);
  }
  void expect_refused(const std::string& options, int code, const std::string& message) const {
    const ProgramResult result = train(options);
    EXPECT_EQ(result.code, code) << options << "\n" << result.err;
    EXPECT_TRUE(says(result.err, message)) << options;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  TinyRun run_;
};

// Everything in which an interrupted run must equal one that was not: the checkpoint, the adapter, losses and norms.
std::map<std::string, std::string> results_of(const fs::path& out) {
  std::map<std::string, std::string> result = tensors_of(out / "checkpoints/step-00000015/rank-00000.safetensors");
  result.merge(tensors_of(out / "adapter/adapter_model.safetensors"));
  for (const auto& [step, line] : metrics_of(out)) result[concat("loss ", step)] = line["loss"].dump() + line["grad_norm"].dump();
  return result;
}

TEST_F(Lora, WithoutAModelIsWarnedOf) {
  const ProgramResult result = run_.train("--lora.rank=2 --training.steps=1 --run.output_dir=alone");
  EXPECT_NE(result.out.find(" frozen parameters, "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(" trained in adapters, on cpu"), std::string::npos) << result.out;
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "warning: [lora] without model.init_from: the adapters are trained with random weights"));
}

TEST_F(Lora, ResumesToTheBit) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_rowwise"}) {
    const std::string options = concat("--precision.recipe=", recipe, " --run.output_dir=", recipe, " --lora.dropout=0.2");
    ASSERT_EQ(train(options).code, 0);
    const auto expected = results_of(run_ / recipe);
    fs::remove_all(run_ / recipe / "checkpoints/step-00000015");
    fs::remove_all(run_ / recipe / "adapter");
    const ProgramResult again = train(options);
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(says(again.err, "resuming after step 10")) << again.err;
    EXPECT_TRUE(results_of(run_ / recipe) == expected) << recipe;
    EXPECT_FALSE(fs::exists(run_ / recipe / "model"));
  }
}

// An adapter is set aside like a model, also where only the adapter is in the folder.
TEST_F(Lora, SetsAnEarlierAdapterAside) {
  ASSERT_EQ(train().code, 0);
  const auto earlier = tensors_of(run_ / "out/adapter/adapter_model.safetensors");
  expect_refused("--resume none", 2, "out: there is a run up to step 15 (3 checkpoints, metrics, an adapter)");
  const std::string again = "--resume none --run.set_aside=true --run.seed=5 ";
  expect_refused(again + "--lora.init_from=out/adapter", 2, "out/adapter: lora.init_from is the adapter of the run that would be set aside");
  ASSERT_EQ(train(again).code, 0);
  const fs::path history = run_ / "out/history";
  ASSERT_EQ(names_in(history).size(), 1u);
  EXPECT_TRUE(tensors_of(history / names_in(history)[0] / "adapter/adapter_model.safetensors") == earlier);
  EXPECT_FALSE(tensors_of(run_ / "out/adapter/adapter_model.safetensors") == earlier);

  fs::create_directories(run_ / "mine");
  fs::copy(history / names_in(history)[0] / "adapter", run_ / "mine/adapter");
  expect_refused("--run.output_dir=mine", 2, "mine: there is a run up to step 0 (an adapter)");
  EXPECT_TRUE(tensors_of(run_ / "mine/adapter/adapter_model.safetensors") == earlier);
}

// A checkpoint holds adapters, their moments and the scales of activations and gradients: nothing of the model.
TEST_F(Lora, StoresNothingOfTheModel) {
  ASSERT_EQ(train().code, 0);
  std::size_t adapters = 0;
  for (const auto& [name, bytes] : tensors_of(run_ / "out/checkpoints/step-00000015/rank-00000.safetensors")) {
    const bool of_adapter = name.find(".lora_A.weight") != std::string::npos || name.find(".lora_B.weight") != std::string::npos;
    const bool of_scales = name.starts_with("fp8.") && name.find(".w.") == std::string::npos;
    EXPECT_TRUE(of_adapter || of_scales || name == "optimizer.updates") << name;
    adapters += of_adapter;
  }
  EXPECT_EQ(adapters, 2u * 4 * 2 * 3) << "A and B of four linears in two layers, each with two moments";
}

std::vector<double> rows_times(const std::vector<double>& b, const std::vector<double>& a, std::size_t rank, double scale) {
  const std::size_t rows = b.size() / rank, cols = a.size() / rank;
  std::vector<double> result(rows * cols);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < rank; ++k) {
      for (std::size_t j = 0; j < cols; ++j) result[i * cols + j] += scale * b[i * rank + k] * a[k * cols + j];
    }
  }
  return result;
}

// Each merged weight is the BF16 weight plus s B A, rounded once.
TEST_F(Lora, IsMergedWithOneRounding) {
  ASSERT_EQ(train("--optimizer.lr=0.05").code, 0);
  for (const std::string from : {"out", "out/adapter"}) {
    fs::remove_all(run_ / "merged");
    const ProgramResult result = run_.run("convert export --output merged --checkpoint " + from);
    ASSERT_EQ(result.code, 0) << result.err;
    const SafetensorsFile base = SafetensorsFile::open(run_ / "base/model/model.safetensors");
    const SafetensorsFile merged = SafetensorsFile::open(run_ / "merged/model.safetensors");
    const SafetensorsFile adapter = SafetensorsFile::open(run_ / "out/adapter/adapter_model.safetensors");
    ASSERT_EQ(merged.tensors().size(), base.tensors().size());
    std::size_t adapted = 0;
    for (const checkpoint::TensorInfo& info : base.tensors()) {
      std::vector<double> expected = values_of(base.get(info.name));
      const std::string module = "base_model.model." + info.name.substr(0, info.name.size() - std::string(".weight").size());
      if (adapter.find(module + ".lora_A.weight")) {
        ++adapted;
        const auto change = rows_times(values_of(adapter.get(module + ".lora_B.weight")),
                                       values_of(adapter.get(module + ".lora_A.weight")), 4, 6.0 / 4);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += change[i];
      }
      // Half a unit in the last place of BF16, and FP32's roundoff of the sum, which can push a value over a boundary.
      EXPECT_TRUE(near(values_of(merged.get(info.name)), expected, [&](std::size_t i) {
        return std::abs(expected[i]) * (kUnitRoundoffBf16 + 0x1p-20) + 1e-12;
      })) << info.name;
    }
    EXPECT_EQ(adapted, 2u * 7);
  }
  const ProgramResult fp8 = run_.run("convert export --output merged8 --dtype fp8 --checkpoint out");
  ASSERT_EQ(fp8.code, 0) << fp8.err;
  ASSERT_EQ(run_.run("convert export --output again8 --dtype fp8 --checkpoint merged").code, 0);
  EXPECT_EQ(tensors_of(run_ / "merged8/model.safetensors"), tensors_of(run_ / "again8/model.safetensors"));
}

TEST_F(Lora, IsEvaluatedAndTalks) {
  ASSERT_EQ(train().code, 0);
  const ProgramResult eval = run_.run("eval lora.toml --checkpoint out --json");
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(json_of(eval.out)["eval_loss"], metrics_of(run_ / "out").at(15)["eval_loss"]);
  for (const std::string model : {"out", "out/adapter"}) {
    const ProgramResult text = run_.run("generate --prompt The --max-tokens 4 --model " + model);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out.rfind("The", 0), 0u) << text.out;
  }
}

std::vector<double> logits_of(const TinyRun& run, const std::string& model) {
  const std::string tokens = concat("'", golden_dir(), "/llama/mha/tokens.safetensors'");
  const ProgramResult probe =
      run.run(concat("probe --recipe fp32 --device cpu --tokens ", tokens, " --model ", model, " --output logits.safetensors"));
  EXPECT_EQ(probe.code, 0) << probe.err;
  const SafetensorsFile file = SafetensorsFile::open(run / "logits.safetensors");
  return values_of(file.get("logits"));
}

// What a run changes in the model's config.json belongs to the adapter, wherever it is used.
TEST_F(Lora, BelongsToTheModelThatTheRunChanged) {
  const std::string keys =
      "--precision.recipe=fp32 --optimizer.lr=0.05 --model.rope_theta=500 --model.max_position_embeddings=128 "
      "--model.rope_scaling.rope_type=linear --model.rope_scaling.factor=2 ";
  const ProgramResult result = train(keys);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err,
                   "base/model/config.json: the adapter was trained with max_position_embeddings = 128, rope_scaling = "
                   "{\"rope_type\":\"linear\",\"factor\":2.0}, rope_theta = 500.0, which PEFT will not see"));
  for (const std::string from : {"out", "out/adapter"}) {
    fs::remove_all(run_ / "merged");
    ASSERT_EQ(run_.run("convert export --dtype fp32 --output merged --checkpoint " + from).code, 0);
    const Json config = json_of(read_file(run_ / "merged/config.json"));
    EXPECT_EQ(config["rope_theta"], 500.0);
    EXPECT_EQ(config["max_position_embeddings"], 128);
    EXPECT_EQ(config["rope_scaling"], Json({{"rope_type", "linear"}, {"factor", 2.0}}));
  }
  ASSERT_EQ(run_.run("convert export --adapter --output again --checkpoint out").code, 0);
  const std::vector<double> merged = logits_of(run_, "merged");
  // FP32 itself errs by about 1e-6: the merged weights are rounded, and the adapters' products are not.
  for (const char* adapter : {"out", "out/adapter", "again"})
    EXPECT_TRUE(near_norm(logits_of(run_, adapter), merged, 1e-5)) << adapter;
  fs::remove(run_ / "again/model_config.json");
  EXPECT_FALSE(near_norm(logits_of(run_, "again"), merged, 1e-2)) << "of the base's config.json";

  const ProgramResult next =
      train("--precision.recipe=fp32 --run.output_dir=next --training.steps=1 --lora.init_from=out/adapter");
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_TRUE(says(next.err, "out/adapter: was trained with rope_theta = 500.0, and this run has 10000.0"));
  EXPECT_FALSE(fs::exists(run_ / "next/adapter/model_config.json"));

  // The length is the one key that may change when a run goes on.
  ASSERT_EQ(train("--run.output_dir=long --training.steps=1 --model.max_position_embeddings=128").code, 0);
  EXPECT_TRUE(fs::exists(run_ / "long/adapter/model_config.json"));
  ASSERT_EQ(train("--run.output_dir=long --training.steps=2").code, 0);
  EXPECT_FALSE(fs::exists(run_ / "long/adapter/model_config.json"));
}

TEST_F(Lora, BelongsToTheTokenizerThatTheRunChose) {
  Json base = json_of(read_file(run_ / "base/model/config.json"));
  base.erase("tokenizer");
  base["of_another_program"] = true;
  write_text(run_ / "base/model/config.json", base.dump());
  ASSERT_EQ(train("--training.steps=2 --model.tokenizer=byte").code, 0);
  ASSERT_EQ(run_.run("convert export --output merged --checkpoint out").code, 0);
  for (const std::string model : {"out", "out/adapter", "merged"}) {
    const ProgramResult text = run_.run("generate --prompt The --max-tokens 4 --model " + model);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out.rfind("The", 0), 0u) << text.out;
  }
  EXPECT_EQ(json_of(read_file(run_ / "merged/config.json"))["tokenizer"], "byte");
  ASSERT_EQ(train("--training.steps=2 --run.output_dir=same").code, 0);
  ASSERT_EQ(run_.run("convert export --output kept --checkpoint same").code, 0);
  EXPECT_EQ(json_of(read_file(run_ / "kept/config.json")), base) << "a config.json that the run left as it was";
}

// Ranks load the model in shards, and the run goes on on one rank.
TEST_F(Lora, GoesFromTwoRanksToOne) {
  const std::string dropout = "--lora.dropout=0.3 ";
  ASSERT_EQ(train(dropout).code, 0);
  const ProgramResult two = run_.run(
      "launch -n 2 -- train lora.toml --training.steps=10 --run.output_dir=two --parallel.reshard_after_forward=true "
      "--parallel.gradients=sharded " +
      dropout);
  ASSERT_EQ(two.code, 0) << two.err;
  const ProgramResult one = train("--run.output_dir=two " + dropout);
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(says(one.err, "resuming after step 10"));
  const auto expected = metrics_of(run_ / "out"), actual = metrics_of(run_ / "two");
  for (const auto& [step, line] : expected)
    EXPECT_NEAR(actual.at(step)["loss"].get<double>(), line["loss"].get<double>(), 0.01) << step;
}

// The evaluation loss of what a run in FP32 begins with, which is printed with six decimals.
double loss_before(const ProgramResult& run) {
  const std::string text = " before step 1, in fp32: ";
  const std::size_t at = run.err.find(text);
  if (at != std::string::npos) return std::stod(run.err.substr(at + text.size()));
  ADD_FAILURE() << run.err;
  return 0;
}

class LoraOfExperts : public Lora {
 protected:
  LoraOfExperts() : Lora("--model.model_type=mixtral --model.num_local_experts=6 --model.num_experts_per_tok=2") {}
};

// Two ranks with three experts each train adapters, one goes on, and the merged model computes what the adapters did.
TEST_F(LoraOfExperts, AreSharedOutAndMerged) {
  const std::string options = "--precision.recipe=fp32 --optimizer.lr=0.05 ";
  const ProgramResult two =
      run_.run("launch -n 2 -- train lora.toml --training.steps=10 --parallel.expert=2 --checkpoint.keep_latest_k=0 " + options);
  ASSERT_EQ(two.code, 0) << two.err;
  const ProgramResult one = train(options);
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(says(one.err, "resuming after step 10"));
  const SafetensorsFile adapter = SafetensorsFile::open(run_ / "out/adapter/adapter_model.safetensors");
  EXPECT_EQ(adapter.tensors().size(), 2u * (2 * (4 + 6 * 3))) << "A and B of four linears and of each expert's three";
  EXPECT_TRUE(adapter.find("base_model.model.model.layers.1.block_sparse_moe.experts.5.w2.lora_B.weight"));
  ASSERT_EQ(run_.run("convert export --output merged --dtype fp32 --checkpoint out").code, 0);
  const double with_adapters = metrics_of(run_ / "out").at(15)["eval_loss"];
  std::string toml = read_file(run_ / "lora.toml");
  toml.erase(toml.find("[lora]"), std::string("[lora]\nrank = 4\nalpha = 6\n").size());
  write_text(run_ / "whole.toml", toml);
  const std::string from = "train whole.toml --precision.recipe=fp32 --training.steps=1 ";
  EXPECT_NEAR(loss_before(run_.run(from + "--run.output_dir=third --model.init_from=merged")), with_adapters, 2e-6);
  EXPECT_GT(std::abs(loss_before(run_.run(from + "--run.output_dir=fourth")) - with_adapters), 1e-3);
}

// Dropout is in what PEFT reads, changes the training and nothing that comes after it, and may change when a run goes on.
TEST_F(Lora, DropsInputsInTrainingAlone) {
  ASSERT_EQ(train().code, 0);
  const std::string drops = "--lora.dropout=0.25 --run.output_dir=drops ";
  ASSERT_EQ(train(drops).code, 0);
  EXPECT_NE(metrics_of(run_ / "drops").at(15)["loss"], metrics_of(run_ / "out").at(15)["loss"]);
  EXPECT_NEAR(metrics_of(run_ / "drops").at(15)["loss"], metrics_of(run_ / "out").at(15)["loss"], 0.5);
  const auto dropout_of = [&](const char* adapter) {
    return json_of(read_file(run_ / adapter / "adapter_config.json"))["lora_dropout"];
  };
  EXPECT_EQ(dropout_of("out/adapter"), 0.0);
  EXPECT_EQ(dropout_of("drops/adapter"), 0.25);
  ASSERT_EQ(run_.run("convert export --adapter --checkpoint drops --output first").code, 0);
  ASSERT_EQ(run_.run("convert export --adapter --checkpoint drops/adapter --output second").code, 0);
  EXPECT_EQ(dropout_of("first"), 0.25);
  EXPECT_EQ(dropout_of("second"), 0.25);
  const ProgramResult eval = run_.run("eval lora.toml --checkpoint drops --json " + drops);
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(json_of(eval.out)["eval_loss"], metrics_of(run_ / "drops").at(15)["eval_loss"]);
  const ProgramResult longer = train("--run.output_dir=drops --training.steps=16 --lora.dropout=0");
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_TRUE(says(longer.err, "changed since then: lora.dropout: 0.25 -> 0.0"));
  for (const std::string rate : {"1", "-0.1", "1.5"}) {
    expect_refused("--run.output_dir=new --lora.dropout=" + rate, 2, "must be at least 0 and below 1");
  }
}

// A run that begins with an adapter begins where the adapter was.
TEST_F(Lora, GoesOnFromAnAdapter) {
  ASSERT_EQ(train("--precision.recipe=fp32 --optimizer.lr=0.05").code, 0);
  const std::string options = "--precision.recipe=fp32 --run.output_dir=second --training.steps=1 --lora.init_from=out/adapter";
  const ProgramResult second = train(options);
  ASSERT_EQ(second.code, 0) << second.err;
  const double after = metrics_of(run_ / "out").at(15)["eval_loss"];
  EXPECT_NEAR(loss_before(second), after, 2e-6);
  // A directory that holds both is read as a model alone.
  fs::copy(run_ / "base/model", run_ / "both", fs::copy_options::recursive);
  fs::copy(run_ / "out/adapter/adapter_config.json", run_ / "both/adapter_config.json");
  const ProgramResult both = train("--model.init_from=both --run.output_dir=both-run --training.steps=1");
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_TRUE(says(both.err, "warning: both: holds a whole model and an adapter_config.json: model.init_from reads the model"));
  EXPECT_EQ(second.err.find("holds a whole model"), std::string::npos) << second.err;
  // The adapter may be to blame for a loss that is not finite.
  fs::copy(run_ / "out/adapter", run_ / "broken", fs::copy_options::recursive);
  std::string weights = read_file(run_ / "broken/adapter_model.safetensors");
  std::fill(weights.end() - 64, weights.end(), '\xFF');
  write_text(run_ / "broken/adapter_model.safetensors", weights);
  const ProgramResult broken = train("--run.output_dir=broken-run --training.steps=1 --lora.init_from=broken");
  EXPECT_TRUE(says(broken.err, "base/model with the adapter broken: the held-out loss of its weights is not finite"));
  // Its checkpoints no longer need the adapter that it began with.
  fs::rename(run_ / "out/adapter", run_ / "away");
  const ProgramResult longer = train(options + " --training.steps=2");
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_TRUE(says(longer.err, "resuming after step 1"));
  EXPECT_EQ(run_.run("eval lora.toml --checkpoint second --lora.init_from=out/adapter --precision.recipe=fp32").code, 0);
  EXPECT_EQ(run_.run("generate --prompt The --max-tokens 4 --model second").code, 0);
  fs::rename(run_ / "away", run_ / "out/adapter");
  expect_refused(options + " --run.output_dir=third --lora.alpha=5", 2, "give --lora.alpha=6, or with lora.rslora = true 3");
  expect_refused("--run.output_dir=third --lora.init_from=out", 76,
                 "out: the folder of a run, not of a model; did you mean out/adapter?");
  expect_refused("--run.output_dir=third --model.init_from=base", 76,
                 "base: the folder of a run, not of a model; did you mean base/model?");
  for (const char* command :
       {"convert verify base base/model", "convert verify base/model base", "convert import --input base --output new"})
    EXPECT_TRUE(refused(run_.run(command), 76, "did you mean base/model?")) << command;
  for (const std::string path : {"out", "out/adapter"}) {
    const std::string advice =
        path + ": an adapter, not a whole model; export the model first: `octet convert export --checkpoint " + path;
    EXPECT_TRUE(refused(run_.run("convert verify base/model " + path), 76, advice));
    expect_refused("--run.output_dir=third --model.init_from=" + path, 76, advice);
  }
  expect_refused("--run.output_dir=third --lora.init_from=base/model", 76, "base/model/adapter_config.json: No such file");
  const fs::path config = run_ / "out/adapter/adapter_config.json";
  Json json = json_of(read_file(config));
  const auto with = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    write_text(config, changed.dump());
  };
  with("use_dora", true);
  expect_refused(options + " --run.output_dir=third", 76, "use_dora = true: Octet reads only adapters with false");
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"init_lora_weights", "pissa"},
                                                                            {"lora_bias", true},
                                                                            {"use_qalora", true},
                                                                            {"alora_invocation_tokens", {1, 2}},
                                                                            {"layer_replication", {{0, 2}, {1, 2}}}}) {
    with(key, value);
    expect_refused(options + " --run.output_dir=third", 76,
                   concat(key, " = ", value.dump(), ": Octet reads only adapters with "));
  }
  with("r", 4.7);
  expect_refused(options + " --run.output_dir=third", 76, "r = 4.7: must be a whole number");
  with("r", 0);
  expect_refused(options + " --run.output_dir=third", 76, "r = 0: must be between 1 and");
  with("lora_alpha", "much");
  expect_refused(options + " --run.output_dir=third", 76, "lora_alpha = \"much\": must be a number");
  with("base_model_name_or_path", "somebody/model");
  const ProgramResult talks = run_.run("generate --prompt The --max-tokens 4 --model out/adapter");
  EXPECT_EQ(talks.code, 76);
  EXPECT_TRUE(says(talks.err, "base_model_name_or_path = \"somebody/model\": there is no model directory at this path"));
  with("r", 4);
  expect_refused(options + " --run.output_dir=third --lora.alpha=4.5 --lora.rank=3", 2,
                 "has rank 4, but lora.rank is 3: give --lora.rank=4");
  // Another model of the same shape.
  fs::copy(run_ / "base/model", run_ / "other", fs::copy_options::recursive);
  with("base_model_name_or_path", (run_ / "other").string());
  const ProgramResult beside_another = train(options + " --run.output_dir=third");
  EXPECT_EQ(beside_another.code, 0) << beside_another.err;
  EXPECT_TRUE(says(beside_another.err,
                   "out/adapter: was trained on top of " + (run_ / "other").string() + ", and this run adapts base/model"));
}

TEST_F(Lora, SaysWhichAdapterFileDoesNotFit) {
  ASSERT_EQ(train("--training.steps=2").code, 0);
  const std::string generate = "generate --prompt The --max-tokens 4 --model out/adapter";
  const fs::path config = run_ / "out/adapter/adapter_config.json", weights = run_ / "out/adapter/adapter_model.safetensors";
  Json json = json_of(read_file(config));
  json["lora_alpha"] = -6;
  write_text(config, json.dump());
  const ProgramResult negative = run_.run(generate);
  EXPECT_EQ(negative.code, 0) << negative.err;
  json["lora_alpha"] = 1e300;
  write_text(config, json.dump());
  EXPECT_TRUE(refused(run_.run(generate), 77, "out/adapter: the logit of token 0 is "));
  std::string bytes = read_file(weights);
  for (std::size_t at = 0; (at = bytes.find("layers.1.", at)) != std::string::npos; ++at) bytes.replace(at, 9, "layers.9.");
  write_text(weights, bytes);
  EXPECT_TRUE(refused(run_.run(generate), 76, "out/adapter/adapter_model.safetensors: adapts \"model.layers.9.",
                      "but no linear of the model's blocks is called so; the blocks have down_proj, "));
}

TEST_F(Lora, RefusesWhatWouldBeAnotherRun) {
  ASSERT_EQ(train().code, 0);
  expect_refused("--training.steps=20 --lora.alpha=8", 2, "lora.alpha is 6.0 there and 8.0 here");
  expect_refused("--training.steps=20 --lora.targets=q_proj", 2, "lora.targets is [\"all-linear\"] there and [\"q_proj\"] here");
  expect_refused("--run.output_dir=base", 2, "lora is absent there");
  expect_refused("--run.output_dir=new --lora.targets=q_proj,gate", 2, "lora.targets: no linear of a block is called \"gate\"");
  expect_refused("--run.output_dir=new --lora.rank=33", 2, "lora.rank = 33: model.layers.0.self_attn.q_proj is [32, 32]");
  ASSERT_EQ(run_.train("--run.output_dir=base --training.steps=9").code, 0);
  expect_refused("--training.steps=20", 76, "out/checkpoints/step-00000015: its adapters belong to a model with the hash ");
  const ProgramResult exported = run_.run("convert export --output merged --checkpoint out");
  EXPECT_EQ(exported.code, 76);
  EXPECT_TRUE(says(exported.err, "its adapters belong to a model with the hash "));
  fs::remove_all(run_ / "base/model");
  expect_refused("--training.steps=20", 76, "base/model/config.json: No such file");
  const ProgramResult none = run_.run("convert export --adapter --output adapter --checkpoint base");
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(says(none.err, "its run has no [lora]"));
}

// The model is gone but for its FP8 codes. The adapter of a checkpoint is exported without it, and merged with what the codes
// decode to.
TEST_F(Lora, IsMergedWithDecodedCodesIfTheModelIsGone) {
  ASSERT_EQ(train("--training.steps=2").code, 0);
  ASSERT_EQ(run_.run("convert export --checkpoint base/model --output base-fp8 --dtype fp8").code, 0);
  fs::rename(run_ / "base", run_ / "gone");
  EXPECT_TRUE(refused(run_.run("convert export --checkpoint out --output merged"), 76, "base/model: neither model.safetensors"));
  const ProgramResult adapter = run_.run("convert export --checkpoint out --output adapter --adapter");
  EXPECT_EQ(adapter.code, 0) << adapter.err;
  EXPECT_TRUE(
      says(adapter.err, "warning: out/checkpoints/step-00000002: base/model, the model of its adapters, is not there any more"));
  EXPECT_TRUE(tensors_of(run_ / "adapter/adapter_model.safetensors") ==
              tensors_of(run_ / "out/adapter/adapter_model.safetensors"));

  ASSERT_EQ(run_.run("convert import --input base-fp8 --output decoded --dtype fp32").code, 0);
  for (const std::string base : {"base-fp8", "decoded"}) {
    Json json = json_of(read_file(run_ / "adapter/adapter_config.json"));
    json["base_model_name_or_path"] = base;
    write_text(run_ / "adapter/adapter_config.json", json.dump());
    const ProgramResult merged = run_.run("convert export --checkpoint adapter --output merged-" + base);
    EXPECT_EQ(merged.code, 0) << merged.err;
    const bool warns =
        says(merged.err, "warning: base-fp8: 14 weights are stored as FP8 codes; the adapter is added to the values decoded");
    EXPECT_EQ(warns, base == "base-fp8") << merged.err;
  }
  EXPECT_TRUE(tensors_of(run_ / "merged-base-fp8/model.safetensors") == tensors_of(run_ / "merged-decoded/model.safetensors"));

  // A run whose model is a directory of codes.
  ASSERT_EQ(train("--training.steps=2 --model.init_from=base-fp8 --run.output_dir=on-codes").code, 0);
  const ProgramResult merged = run_.run("convert export --checkpoint on-codes --output of-run");
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_TRUE(says(merged.err, "warning: base-fp8: 14 weights are stored as FP8 codes"));
}

// A model whose weights are not read must not be taken for one whose weights start at random.
TEST_F(Lora, NeedsWeightsThatCanBeRead) {
  ASSERT_EQ(train("--training.steps=2").code, 0);
  const fs::path weights = run_ / "base/model/model.safetensors";
  for (const std::string name : {"model.safetensors.incomplete", "pytorch_model.bin", "consolidated.00.pth"}) {
    const fs::path other = weights.parent_path() / name;
    fs::rename(weights, other);
    for (const std::string options : {"--run.output_dir=new", "--run.output_dir=new --dry-run"}) {
      expect_refused(options, 76, "base/model: neither model.safetensors nor model.safetensors.index.json, but \"" + name + "\"");
      EXPECT_TRUE(refused(run_.train("--model.init_from=base/model " + options), 76, ", but \"" + name + "\"")) << options;
    }
    fs::rename(other, weights);
  }
  fs::remove(weights);
  const std::string sentence = "base/model: neither model.safetensors nor model.safetensors.index.json. [lora] needs the weights";
  expect_refused("--run.output_dir=new", 76, sentence);
  expect_refused("--training.steps=20", 76, sentence);
  for (const std::string command : {"convert export --output merged --checkpoint out", "generate --prompt The --model out",
                                    "eval lora.toml --checkpoint out"})
    EXPECT_TRUE(refused(run_.run(command), 76, sentence)) << command;
  fs::remove_all(run_ / "base/model");
  EXPECT_TRUE(refused(run_.run("convert export --output merged --checkpoint out"), 76, sentence));
  EXPECT_FALSE(fs::exists(run_ / "new"));
}

}  // namespace
}  // namespace octet::testing
