// `octet eval --model`: model directories and adapters, which a run could begin with.
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class EvalModel : public ::testing::Test {
 protected:
  EvalModel() {
    EXPECT_EQ(run_.train("--run.output_dir=base --training.steps=8 --precision.recipe=bf16").code, 0);
    EXPECT_EQ(adapt("--run.output_dir=out --training.steps=15 --optimizer.lr=0.05").code, 0);
  }
  ProgramResult adapt(const std::string& options) const {
    return run_.train("--model.init_from=base/model --lora.rank=4 --lora.alpha=6 " + options);
  }
  double eval(const std::string& options) const {
    const ProgramResult result = run_.run("eval run.toml --json " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? json_of(result.out)["eval_loss"].get<double>() : -1;
  }
  double before_first_step(const std::string& out) const {
    return json_of(read_file(run_ / out / "run.json"))["initial_eval_loss"].get<double>();
  }
  TinyRun run_;
};

// A run that begins with the model or the adapter says the same before its first step, to the bit.
TEST_F(EvalModel, IsTheLossBeforeTheFirstStep) {
  for (const std::string recipe : {"fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8"}) {
    const std::string options = "--precision.recipe=" + recipe;
    ASSERT_EQ(run_.run("train run.toml --model.init_from=base/model --training.steps=1 --run.output_dir=m" + recipe + " " + options).code, 0);
    const double of_model = eval("--model base/model " + options);
    EXPECT_EQ(of_model, before_first_step("m" + recipe)) << recipe;
    ASSERT_EQ(adapt("--lora.init_from=out/adapter --training.steps=1 --run.output_dir=a" + recipe + " " + options).code, 0);
    const double of_adapter = eval("--model out/adapter " + options);
    EXPECT_EQ(of_adapter, before_first_step("a" + recipe)) << recipe;
    EXPECT_NE(of_adapter, of_model) << recipe;
  }
}

TEST_F(EvalModel, TakesTheFolderOfARunAndACheckpoint) {
  const std::string lora = "--model.init_from=base/model --lora.rank=4 --lora.alpha=6 ";
  const double newest = eval(lora + "--checkpoint out");
  EXPECT_EQ(eval(lora + "--model out"), newest);
  EXPECT_EQ(eval(lora + "--model out/checkpoints/step-00000015"), newest);
  fs::remove_all(run_ / "out/checkpoints");
  EXPECT_EQ(eval(lora + "--model out"), eval("--model out/adapter"));
  const ProgramResult text = run_.run("eval run.toml --model out/adapter");
  EXPECT_TRUE(text.out.starts_with("out/adapter: held-out loss ")) << text.out;
}

// Without text to train on, the held-out text sets the scales of delayed scaling.
TEST_F(EvalModel, NeedsNoTextToTrainOn) {
  const std::string all = "--model base/model --data.split=0,1 ";
  const double in_bf16 = eval(all + "--precision.recipe=bf16"), calibrated = eval(all);
  EXPECT_NEAR(calibrated, in_bf16, 0.02) << "a cast to FP8 costs this tiny model less";
  EXPECT_NE(eval(all + "--precision.calibrate=false"), calibrated);
}

TEST_F(EvalModel, RefusesWhatDoesNotFit) {
  const std::string eval = "eval run.toml --model out/adapter";
  EXPECT_TRUE(refused(run_.run("eval run.toml --checkpoint out --model out"), 2, "--checkpoint excludes --model"));
  EXPECT_TRUE(refused(run_.run("eval run.toml --checkpoint base/model"), 76, "--model takes model directories and adapters"));
  EXPECT_TRUE(refused(run_.run("eval run.toml --model nowhere"), 76, "nowhere: no such folder"));
  for (const std::string command : {"eval run.toml", "generate --prompt x"}) {
    EXPECT_TRUE(refused(run_.run(command + " --model out/adapter/adapter_config.json"), 76,
                        "adapter_config.json: not a folder; give a model directory, a checkpoint or the folder of a run"));
  }
  EXPECT_TRUE(refused(run_.run(eval + " --training.seq_len=128"), 2, "training.seq_len = 128 is beyond the model's"));
  EXPECT_TRUE(refused(run_.run(eval + " --data.split=1,0"), 2, "out/adapter: no held-out text"));

  const fs::path config = run_ / "out/adapter/adapter_config.json", weights = run_ / "out/adapter/adapter_model.safetensors";
  const Json json = json_of(read_file(config));
  const auto with = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    write_text(config, changed.dump());
    return run_.run(eval);
  };
  EXPECT_TRUE(refused(with("base_model_name_or_path", "somebody/model"), 76, "there is no model directory at this path"));
  EXPECT_TRUE(refused(with("r", 33), 76, "adapter_model.safetensors: rank 33: model.layers.0.self_attn.q_proj is [32, 32]"));
  EXPECT_TRUE(refused(with("use_dora", true), 76, "use_dora = true: Octet reads only adapters with false"));
  ASSERT_EQ(run_.train("--run.output_dir=wide --training.steps=1 --model.intermediate_size=96").code, 0);
  EXPECT_TRUE(refused(with("base_model_name_or_path", (run_ / "wide/model").string()), 76, "down_proj.lora_A.weight", "[4, 96]"));
  write_text(config, json.dump());
  std::string bytes = read_file(weights);
  for (std::size_t at = 0; (at = bytes.find("layers.1.", at)) != std::string::npos; ++at) bytes.replace(at, 9, "layers.9.");
  write_text(weights, bytes);
  EXPECT_TRUE(refused(run_.run(eval), 76, "adapter_model.safetensors: adapts \"model.layers.9.", "but no linear of the model's blocks"));
  std::string nan = read_file(run_ / "base/model/model.safetensors");
  nan.replace(nan.size() - 64, 64, 64, '\xFF');
  write_text(run_ / "base/model/model.safetensors", nan);
  EXPECT_TRUE(refused(run_.run("eval run.toml --model base/model"), 77, "base/model: the held-out loss is not finite"));
}

}  // namespace
}  // namespace octet::testing
