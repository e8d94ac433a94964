// A run of another family than Llama, with everything that it leaves and that is made from it.
#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"
#include "octet/tensor/host_tensor.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

std::string gpt_neox_toml(const std::string& model) {
  const std::string toml = tiny_toml();
  const std::size_t begin = toml.find("[model]\n"), end = toml.find("[[data.source]]");
  return toml.substr(0, begin) + "[model]\n" + model + toml.substr(end);
}

class GptNeoxRun : public ::testing::Test {
 protected:
  GptNeoxRun() {
    write_text(run_ / "run.toml", gpt_neox_toml(R"(model_type = "gpt_neox"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
max_position_embeddings = 64
rotary_pct = 0.5
tokenizer = "byte"
)"));
    EXPECT_EQ(run_.train("--training.steps=20 --checkpoint.keep_latest_k=0").code, 0);
  }
  TinyRun run_;
};

TEST_F(GptNeoxRun, ResumesToTheBit) {
  fs::copy(run_ / "out", run_ / "reference", fs::copy_options::recursive);
  for (const std::int64_t step : {15, 20}) fs::remove_all(run_ / "out/checkpoints" / checkpoint::step_name(step));
  fs::remove_all(run_ / "out/model");
  const ProgramResult result = run_.train("--training.steps=20 --checkpoint.keep_latest_k=0");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("resuming after step 10"), std::string::npos) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
}

// Names and rows are mapped in both directions, so the exported files must equal the imported ones.
TEST_F(GptNeoxRun, ExportsWhatItImports) {
  const ProgramResult exported = run_.run("convert export --checkpoint out/checkpoints/step-00000020 --output exported");
  ASSERT_EQ(exported.code, 0) << exported.err;
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_file(run_ / "exported" / name), read_file(run_ / "out/model" / name)) << name;
  }
  const auto names = checkpoint::ModelWeights::open(run_ / "exported").names();
  EXPECT_NE(std::find(names.begin(), names.end(), "gpt_neox.layers.1.attention.query_key_value.bias"), names.end());
  write_text(run_ / "again.toml", gpt_neox_toml("init_from = \"exported\"\n"));
  const ProgramResult again = run_.run(
      "train again.toml --run.output_dir=again --training.steps=1 --optimizer.lr=0 --checkpoint.resume=none "
      "--run.set_aside=true");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(tensors_of(run_ / "again/model/model.safetensors") == tensors_of(run_ / "exported/model.safetensors"));
  EXPECT_EQ(read_file(run_ / "again/model/config.json"), read_file(run_ / "exported/config.json"));
}

// Published models hold the causal mask as a tensor, in a dtype that weights do not have.
TEST_F(GptNeoxRun, TakesAdaptersBesideBuffersThatItDoesNotRead) {
  fs::copy(run_ / "out/model", run_ / "published");
  const checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(run_ / "out/model/model.safetensors");
  std::vector<checkpoint::NamedTensor> tensors;
  for (const checkpoint::TensorInfo& info : file.tensors()) tensors.push_back({info.name, file.get(info)});
  const HostTensor mask(DType::u8, {64, 64});
  const auto write = [&](const std::string& name) {
    tensors.push_back({name, mask.view()});
    checkpoint::write_safetensors(run_ / "published/model.safetensors", tensors);
    tensors.pop_back();
  };
  write_text(run_ / "lora.toml", gpt_neox_toml("init_from = \"published\"\n[lora]\nrank = 2\n"));
  write("gpt_neox.layers.1.attention.bias");
  for (const char* steps : {"--training.steps=1", "--training.steps=2"}) {
    const ProgramResult result = run_.run(concat("train lora.toml --run.output_dir=lora ", steps));
    EXPECT_EQ(result.code, 0) << result.err;
  }
  write("gpt_neox.layers.1.attention.other");
  EXPECT_TRUE(refused(run_.run("train lora.toml --run.output_dir=new"), 76,
                      "1 unexpected tensor: \"gpt_neox.layers.1.attention.other\""));
}

TEST_F(GptNeoxRun, EvaluatesSpeaksAndIsPlanned) {
  EXPECT_EQ(run_.run("eval run.toml --checkpoint out/checkpoints/step-00000020").code, 0);
  const ProgramResult text = run_.run("generate --model out/model --prompt 'the model ' --max-tokens 20 --temperature 0");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("the model ", 0), 0u) << text.out;
  const ProgramResult plan = run_.run("plan run.toml --gpus 4xH100 --training.micro_batch_size=1 --parallel.tensor=2");
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("tok/s/gpu"), std::string::npos) << plan.out;
  const ProgramResult advice = run_.run("advise run.toml --device cpu");
  ASSERT_EQ(advice.code, 0) << advice.err;
  EXPECT_NE(advice.out.find("up       [64, 32]"), std::string::npos) << advice.out;
}

TEST_F(GptNeoxRun, GoesOnOnOtherMeshes) {
  for (const std::string mesh : {"--parallel.tensor=2", "--parallel.shard=2"}) {
    const ProgramResult result = run_.run(
        "launch -n 2 -- train run.toml --training.steps=22 --resume out/checkpoints/step-00000020 "
        "--run.output_dir=out-" +
        mesh.substr(mesh.find('.') + 1, 5) + " " + mesh);
    ASSERT_EQ(result.code, 0) << mesh << "\n" << result.err;
  }
}

}  // namespace
}  // namespace octet::testing
