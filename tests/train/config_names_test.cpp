// The answers to unknown keys.
#include <gtest/gtest.h>

#include <algorithm>

#include "octet/base/require.h"
#include "octet/train/config.h"
#include "support/errors.h"

namespace octet::train {
namespace {

std::string answer_to(const std::string& text) {
  return testing::error_if_any(ExitCode::config, [&] { parse_config(text, "run.toml"); });
}

TEST(ConfigNames, UnknownKeysSuggestOurs) {
  EXPECT_EQ(answer_to("[optimizer]\nlearning_rate = 1\n"),
            "run.toml:2: optimizer.learning_rate: unknown key (did you mean optimizer.lr?)");
  EXPECT_EQ(answer_to("learning_rate = 1\n"), "run.toml:1: learning_rate: unknown key (did you mean optimizer.lr?)");
  EXPECT_EQ(answer_to("[training]\nseq_length = 1\n"),
            "run.toml:2: training.seq_length: unknown key (did you mean training.seq_len?)");
  EXPECT_EQ(answer_to("[trainning]\nsteps = 1\n"), "run.toml:1: trainning: unknown key (did you mean training?)");
  EXPECT_EQ(answer_to("[precision]\nrecepie = 1\n"),
            "run.toml:2: precision.recepie: unknown key (did you mean precision.recipe?)");
  EXPECT_EQ(answer_to("[training]\nlr = 1\n"), "run.toml:2: training.lr: unknown key (did you mean optimizer.lr?)");
  for (const auto& [wrong, ours] : {std::pair("data.sources", "data.source"),
                                    {"data.sorce", "data.source"},
                                    {"evaluation.sources", "evaluation.source"},
                                    {"model.rope_scalng", "model.rope_scaling"},
                                    {"train", "training"},
                                    {"eval", "evaluation"},
                                    {"run.output", "run.output_dir"},
                                    {"lora.r", "lora.rank"},
                                    {"model.layers", "model.num_hidden_layers"}})
    EXPECT_EQ(advise_key(wrong), std::string(" (did you mean ") + ours + "?)");
  EXPECT_EQ(
      answer_to("[run]\nqqqqqqqqqq = 1\n"),
      "run.toml:2: run.qqqqqqqqqq: unknown key ([run] has name, output_dir, seed, device, deterministic, threads, set_aside)");
}

TEST(ConfigNames, OtherProgramsNamesAreKnown) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"learning_rate", "optimizer.lr"},
      {"per_device_train_batch_size", "training.micro_batch_size"},
      {"gradient_accumulation_steps", "training.global_batch_size"},
      {"num_train_epochs", "training.epochs"},
      {"sequence_len", "training.seq_len"},
      {"max_seq_length", "training.seq_len"},
      {"lr-warmup-iters", "lr_scheduler.warmup_steps"},
      {"global-batch-size", "training.global_batch_size"},
      {"--micro-batch-size", "training.micro_batch_size"},
      {"train-iters", "training.steps"},
      {"clip-grad", "optimizer.max_grad_norm"},
      {"tensor-model-parallel-size", "parallel.tensor"},
      {"fp8-format", "precision.format"},
      {"base_model", "model.init_from"},
      {"save_steps", "checkpoint.interval"},
      {"warmup_steps", "lr_scheduler.warmup_steps"},
      {"data_parallel_shard_degree", "parallel.shard"},
      {"n_layers", "model.num_hidden_layers"},
      {"steps", "training.steps"},
      {"hybrid_shard_degree", "parallel.shard"},
      {"first_last_layers_bf16", "precision.skip"},
      {"checkpoint.enable_checkpoint", "checkpoint.interval"},
      {"job.dump_folder", "run.output_dir"},
      {"checkpoint.folder", "run.output_dir"},
      {"comm.init_timeout_seconds", "comm.join_timeout_s"},
      {"activation_checkpoint.selective_ac_option", "activation_checkpoint.mode"},
  };
  std::vector<std::string> paths;
  for (const KeyDescription& key : config_keys()) paths.push_back(key.path);
  for (const auto& [name, ours] : names) {
    EXPECT_EQ(advise_key(name), " (did you mean " + ours + "?)") << name;
    EXPECT_NE(std::find(paths.begin(), paths.end(), ours), paths.end()) << ours;
  }
  EXPECT_EQ(answer_to("[job]\ndescription = ''\n"), "run.toml:1: job: unknown key (did you mean run?)");
  EXPECT_EQ(answer_to("[profiling]\nenable_profiling = true\n"),
            "run.toml:1: profiling: unknown key (`octet bench step RUN.toml` measures a step, kernel by kernel)");
  EXPECT_EQ(advise_key("optimizer.name"), " (octet has one optimizer, AdamW)");
  EXPECT_EQ(advise_key("optimizer.fused"), " (octet has one implementation of AdamW)");
  EXPECT_EQ(advise_key("training.compile"), " (octet does not compile models; the program contains all kernels)");
  EXPECT_EQ(advise_key("model.delayed_param"), " (octet always creates parameters shard by shard)");
  EXPECT_EQ(advise_key("parallel.sequence_parallel"), " (parallel.tensor always divides the tokens, too)");
  EXPECT_EQ(advise_key("sm_activation_offloading"),
            " (octet does not offload activations; activation_checkpoint.mode saves their memory)");
}

TEST(ConfigNames, AnOverrideNamesItsWholeKey) {
  Config config;
  EXPECT_EQ(testing::error_if_any(ExitCode::config, [&] { apply_override(config, "job.dump_folder=x"); }),
            "--job.dump_folder=x: job.dump_folder: unknown key (did you mean run.output_dir?)");
}

}  // namespace
}  // namespace octet::train
