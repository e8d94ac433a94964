#include "octet/train/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/models/decoder/config.h"
#include "octet/recipes/registry.h"
#include "support/errors.h"
#include "support/paths.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

template <class F>
std::string error_of(F&& f) {
  return testing::error_if_any(ExitCode::config, f);
}
std::string parse_error(const std::string& text) {
  return error_of([&] { parse_config(text, "run.toml"); });
}
std::string override_error(const std::string& assignment) {
  return error_of([&] {
    Config config;
    apply_override(config, assignment);
  });
}
std::string check_error(const std::string& text, std::int64_t ranks = 1) {
  return error_of([&] { check_config(parse_config(text, "run.toml"), ranks); });
}

const std::string kWhole = "[model]\nhidden_size = 64\n[[data.source]]\npath = \"corpus\"\n";

TEST(Config, DefaultsAreTheContract) {
  const Json c = to_json(Config{});
  const auto at = [&](const char* pointer) { return c.at(nlohmann::ordered_json::json_pointer(pointer)).dump(); };
  EXPECT_EQ(at("/run/seed"), "42");
  EXPECT_EQ(at("/run/device"), "\"auto\"");
  EXPECT_EQ(at("/run/deterministic"), "false");
  EXPECT_EQ(at("/run/threads"), "0");
  EXPECT_EQ(
      at("/training"),
      R"({"seq_len":8192,"micro_batch_size":1,"global_batch_size":64,"steps":1000,"epochs":0.0,"grad_dtype":"fp32","reduce_dtype":"fp32","mask":true})");
  EXPECT_EQ(at("/optimizer"),
            R"({"lr":0.0003,"betas":[0.9,0.95],"eps":1e-08,"weight_decay":0.1,"max_grad_norm":1.0,"state_dtype":"fp32","master_weights":true,"offload":false})");
  EXPECT_EQ(at("/lr_scheduler"), R"({"warmup_steps":100,"decay":"cosine","min_lr_factor":0.1})");
  EXPECT_EQ(at("/precision"),
            R"({"recipe":"fp8_delayed","preset":"safe","format":"hybrid","amax_history_len":1024,"amax_compute_algo":"max","margin":0,"calibrate":true,"reduce_amax":true,)"
            R"("power_of_2":"auto","amax_epsilon":0.0,"accumulation":"auto","wgrad":"recipe","head":"bf16","attention":"bf16","weight_transpose_cache":true,"skip":[],)"
            R"("emulate":false})");
  EXPECT_EQ(at("/data"), R"({"document_mask":false,"packing":"stream","split":[0.98,0.02],"split_by":"documents"})");
  EXPECT_EQ(at("/evaluation"), R"({"interval":100,"sequences":64,"keep_best":false,"patience":0,"decides":""})");
  EXPECT_EQ(
      at("/parallel"),
      R"({"replicate":1,"shard":-1,"context":1,"tensor":1,"expert":1,"expert_lanes":1,"pipeline":1,"pipeline_schedule":"1f1b","pipeline_chunks":1,"pipeline_head_blocks":-1,"reshard_after_forward":"auto","gradients":"auto"})");
  EXPECT_EQ(at("/activation_checkpoint"), R"({"mode":"none","layers":-1})");
  EXPECT_EQ(
      at("/checkpoint"),
      R"({"interval":500,"keep_latest_k":3,"keep_every":0,"resume":"auto","allow":[],"async":true,"max_failed_saves":3,"retry_s":60.0,"memory_every":"auto","mtbf_hours":8000.0,"replicas":1,"local_dir":"","remote":""})");
  EXPECT_EQ(at("/run/set_aside"), "false");
  EXPECT_EQ(at("/anomaly"), R"({"spike":"auto","max_rollbacks":3,"remedy":"rollback"})");
  EXPECT_EQ(at("/health"), R"({"replicas_every":10,"sdc_every":0,"straggler":0.85})");
  EXPECT_EQ(at("/metrics"), R"({"log_freq":10,"tensorboard":true,"health_freq":100,"port":0,"address":"127.0.0.1"})");
}

// Products of these are computed with, and steps are counted in 32 bits.
TEST(Config, NumbersThatWouldOverflowAreRefused) {
  for (const std::string key : {"seq_len", "micro_batch_size", "global_batch_size"}) {
    EXPECT_EQ(parse_error("[training]\n" + key + " = 4294967297\n"),
              "run.toml:2: training." + key + " = 4294967297: must be at least 1 and at most 2147483647");
  }
  EXPECT_EQ(parse_error("[training]\nsteps = 4294967296\n"),
            "run.toml:2: training.steps = 4294967296: must be at least 0 and at most 4294967295");
  EXPECT_EQ(parse_config("[checkpoint]\nkeep_latest_k = 4294967297\n", "run.toml").checkpoint.keep_latest_k, 4294967297);
  EXPECT_EQ(parse_error("[parallel]\npipeline_chunks = 9223372036854775807\n"),
            "run.toml:2: parallel.pipeline_chunks = 9223372036854775807: must be at least 1 and at most 1048576");
  EXPECT_EQ(parse_error("[comm]\ntimeout_s = 1e10\n"), "run.toml:2: comm.timeout_s = 10000000000.0: must be above 0 and at most 31536000");
  EXPECT_EQ(parse_error("[optimizer]\neps = 1e-46\n"),
            "run.toml:2: optimizer.eps = 1e-46: must be at least 1.17549435082229e-38 and at most 1");
  for (const auto& [section, key] :
       {std::pair("optimizer", "eps"), std::pair("model", "rms_norm_eps"), std::pair("model", "layer_norm_eps")}) {
    EXPECT_EQ(parse_error(concat("[", section, "]\n", key, " = 2\n")),
              concat("run.toml:2: ", section, ".", key, " = 2: must be at least 1.17549435082229e-38 and at most 1"));
  }
  for (const auto& [section, key] : {std::pair("optimizer", "lr"), std::pair("optimizer", "weight_decay"),
                                     std::pair("optimizer", "max_grad_norm"), std::pair("precision", "amax_epsilon"),
                                     std::pair("model", "initializer_range"), std::pair("model", "router_z_loss_coef")}) {
    EXPECT_EQ(parse_error(concat("[", section, "]\n", key, " = 1e39\n")),
              concat("run.toml:2: ", section, ".", key, " = 1e+39: must be at least 0 and at most 1e+30"));
  }
  EXPECT_EQ(parse_error("[lora]\nalpha = 1e39\n"), "run.toml:2: lora.alpha = 1e+39: must be above 0 and at most 1e+30");
}

TEST(Config, BatchesThatNoRankCanComputeAreRefused) {
  const auto refusal = [](const std::string& training) {
    return check_error(kWhole + "[training]\n" + training);
  };
  EXPECT_NE(refusal("global_batch_size = 2147483647\n").find("2147483647 micro-batches a step on each rank"), std::string::npos);
  EXPECT_NE(refusal("micro_batch_size = 524288\nglobal_batch_size = 524288\n").find("batch sizes count sequences, not tokens"),
            std::string::npos);
}

// [precision] and recipes::Options must have the same defaults.
TEST(Config, PrecisionDefaultsAreThoseOfTheRecipes) {
  const PrecisionConfig config;
  const recipes::Options options;
  EXPECT_EQ(config.format, options.format);
  EXPECT_EQ(config.amax_history_len, options.amax_history_len);
  EXPECT_EQ(config.amax_compute_algo, options.amax_compute_algo);
  EXPECT_EQ(config.margin, options.margin);
  EXPECT_EQ(config.power_of_2, options.power_of_2);
  EXPECT_EQ(config.amax_epsilon, options.amax_epsilon);
  EXPECT_EQ(config.accumulation, options.accumulation);
  EXPECT_EQ(config.wgrad, options.wgrad);
  EXPECT_EQ(config.head, options.head);
}

TEST(Config, APresetSetsKeysThatOthersOverride) {
  const auto accumulation = [](const std::string& text, const std::vector<std::string>& overrides = {}) {
    Config config = parse_config("[precision]\n" + text, "run.toml");
    for (const std::string& assignment : overrides) apply_override(config, assignment);
    const recipes::AccumulationOptions& a = config.precision.accumulation;
    return a.fprop + " " + a.dgrad + " " + a.wgrad;
  };
  EXPECT_EQ(accumulation("preset = 'safe'"), "auto auto auto");
  EXPECT_EQ(accumulation("preset = 'fast'"), "auto fast auto");
  EXPECT_EQ(accumulation("accumulation = 'precise'\npreset = 'fast'"), "precise precise precise");
  EXPECT_EQ(accumulation("preset = 'fast'\naccumulation.wgrad = 'fast'"), "auto fast fast");
  EXPECT_EQ(accumulation("preset = 'fast'", {"precision.preset=safe"}), "auto auto auto");
  EXPECT_EQ(accumulation("", {"precision.preset=fast", "precision.accumulation.dgrad=precise"}), "auto precise auto");
  EXPECT_EQ(parse_error("[precision]\npreset = 'fastest'\n"),
            "run.toml:2: precision.preset = \"fastest\": must be one of safe | fast");
}

TEST(Config, ReadsEverySection) {
  const Config c = parse_config(
      "[run]\nname = 'a'\nseed = 7\n[model]\nconfig = 'llama3.1-8b'\n[[data.source]]\npath = 'x'\n[[data.source]]\npath = "
      "'y'\nweight = 3\nsplit = 'validation'\n"
      "[training]\nepochs = 2\n[precision]\nrecipe = 'fp8_block'\npower_of_2 = true\nskip = ['lm_head', '*.down_proj']\n"
      "[parallel]\nreshard_after_forward = false\n[optimizer]\nlr = 1\n",
      "run.toml");
  EXPECT_EQ(c.run.name, "a");
  EXPECT_EQ(c.run.seed, 7u);
  EXPECT_EQ(c.model.config, "llama3.1-8b");
  ASSERT_EQ(c.data.source.size(), 2u);
  EXPECT_EQ(c.data.source[1].path, "y");
  EXPECT_EQ(c.data.source[1].weight, 3.0);
  EXPECT_EQ(c.data.source[0].split, "auto");
  EXPECT_EQ(c.data.source[1].split, "validation");
  EXPECT_EQ(c.training.epochs, 2.0);
  EXPECT_EQ(c.training.steps, 0);
  EXPECT_EQ(c.precision.power_of_2, "true");
  EXPECT_EQ(c.precision.skip, (std::vector<std::string>{"lm_head", "*.down_proj"}));
  EXPECT_EQ(c.parallel.reshard_after_forward, "false");
  EXPECT_EQ(c.optimizer.lr, 1.0);
  EXPECT_EQ(c.file, "run.toml");
}

TEST(Config, PrintsEveryKeyAndReadsItBack) {
  Config c = parse_config(kWhole + "[optimizer]\nlr = 0.1\n[model.rope_scaling]\nfactor = 32\n[lora]\n[training]\nepochs = 0.5\n",
                          "run.toml");
  c.run.name = "quotes \" and \\ and\nnew lines";
  const std::string printed = print_config(c);
  const Config again = parse_config(printed, "printed");
  EXPECT_EQ(to_json(again), to_json(c)) << printed;
  EXPECT_EQ(print_config(again), printed);
  EXPECT_GT(config_keys().size(), 75u);
  for (const KeyDescription& key : config_keys()) {
    const std::string name = key.path.substr(key.path.rfind('.') + 1);
    EXPECT_NE(printed.find(name), std::string::npos) << key.path;
  }
}

// Whether a key is in a table of which there are as many as the user writes, perhaps none.
bool is_of_list(const KeyDescription& key) {
  return key.path.starts_with("data.source.") || key.path.starts_with("evaluation.source.");
}
// The members of a record for which one string stands while they are equal.
bool is_of_single(const KeyDescription& key) { return key.path.starts_with("precision.accumulation."); }
bool is_optional(const KeyDescription& key) {
  return is_of_list(key) || key.path.starts_with("model.rope_scaling.") || key.path.starts_with("lora.");
}

// A table that the run does not have is printed as a comment.
TEST(Config, PrintsTheKeysOfAbsentTables) {
  const std::string printed = print_config(Config{}), table = "\n# [lora]\n# rank = 16 ";
  const std::size_t begin = printed.find(table);
  ASSERT_NE(begin, std::string::npos) << printed;
  for (const KeyDescription& key : config_keys()) {
    if (!key.path.starts_with("lora.")) continue;
    const std::string line = concat("\n# ", key.path.substr(5), " = ", key.default_value, "  ");
    EXPECT_NE(printed.find(line, begin), std::string::npos) << line;
  }
  EXPECT_FALSE(parse_config(printed, "printed").lora);
}

TEST(Config, EveryKeyIsExplainedInASentence) {
  const std::string printed = print_config(Config{});
  for (const KeyDescription& key : config_keys()) {
    const std::string help(key.field.help);
    ASSERT_GT(help.size(), 5u) << key.path;
    EXPECT_EQ(help.back(), '.') << key.path;
    EXPECT_NE(key.type, "") << key.path;
    EXPECT_TRUE(is_of_list(key) || is_of_single(key) || printed.find(help) != std::string::npos)
        << key.path << " is not explained by --print-config";
  }
}

// Setting a key to the default that the reference shows must change nothing.
TEST(Config, DescribedDefaultsSetNothingNew) {
  for (const KeyDescription& key : config_keys()) {
    if (key.default_value.empty() || is_optional(key)) continue;
    Config config;
    apply_override(config, key.option + "=" + key.default_value);
    EXPECT_EQ(to_json(config), to_json(Config{})) << key.path << " = " << key.default_value;
  }
  Config config;
  apply_override(config, "data.source.0.path=x");
  for (const KeyDescription& key : config_keys()) {
    if (key.path.rfind("data.source.", 0) == 0) apply_override(config, key.option + "=" + key.default_value);
  }
  ASSERT_EQ(config.data.source.size(), 1u);
  EXPECT_EQ(config.data.source[0].path, "");
}

TEST(Config, TargetsOfLoraAreOneNameOrSeveral) {
  EXPECT_FALSE(parse_config("", "run.toml").lora);
  using Names = std::vector<std::string>;
  EXPECT_EQ(parse_config("[lora]\n", "run.toml").lora->targets, Names{"all-linear"});
  EXPECT_EQ(parse_config("[lora]\ntargets = 'q_proj'\n", "run.toml").lora->targets, Names{"q_proj"});
  EXPECT_EQ(parse_config("[lora]\ntargets = ['q_proj', 'v_proj']\n", "run.toml").lora->targets, (Names{"q_proj", "v_proj"}));
  Config c;
  apply_override(c, "lora.targets=k_proj,o_proj");
  EXPECT_EQ(c.lora->targets, (Names{"k_proj", "o_proj"}));
  EXPECT_EQ(check_error(kWhole + "[lora]\ntargets = []\n"),
            "run.toml: lora.targets = []: adapters of no linear train nothing; name linears, or give \"all-linear\"");
  EXPECT_EQ(parse_error("[lora]\nrank = 0\n"), "run.toml:2: lora.rank = 0: must be at least 1 and at most 1048576");
  EXPECT_EQ(parse_error("[lora]\nlora_dropout = 0.1\n"),
            "run.toml:2: lora.lora_dropout: unknown key (did you mean lora.dropout?)");
  EXPECT_EQ(parse_error("[model]\ndropout = 0.1\n"),
            "run.toml:2: model.dropout: unknown key (octet drops only inputs of adapters, with lora.dropout)");
  EXPECT_EQ(parse_error("[lora]\ntargets = 3\n"), "run.toml:2: lora.targets = 3: must be a list, not a whole number");
}

TEST(Config, WrongTypesNameKeyValueWantedTypeFileAndLine) {
  EXPECT_EQ(parse_error("[optimizer]\nlr = \"fast\"\n"), "run.toml:2: optimizer.lr = \"fast\": must be a number, not a string");
  EXPECT_EQ(parse_error("[training]\n\nsteps = 10.5\n"), "run.toml:3: training.steps = 10.5: must be a whole number");
  EXPECT_EQ(parse_error("[run]\nname = 3\n"), "run.toml:2: run.name = 3: must be a string, not a whole number");
  EXPECT_EQ(parse_error("[run]\ndeterministic = 'yes'\n"), "run.toml:2: run.deterministic = \"yes\": must be true or false, not a string");
  EXPECT_EQ(parse_error("[precision]\nskip = 'lm_head'\n"), "run.toml:2: precision.skip = \"lm_head\": must be a list, not a string");
  EXPECT_EQ(parse_error("[precision]\nrecipe = true\n"), "run.toml:2: precision.recipe = true: must be a string, not true or false");
  EXPECT_EQ(parse_error("optimizer = 3\n"), "run.toml:1: optimizer = 3: must be a table ([optimizer]), not a whole number");
  EXPECT_EQ(parse_error("[data.source]\npath = 'x'\n"),
            "run.toml:1: data.source = { path = \"x\" }: must be a list of tables ([[data.source]]), not a table");
}

TEST(Config, ValuesOutsideTheirRangeOrChoices) {
  EXPECT_EQ(parse_error("[training]\nseq_len = 0\n"), "run.toml:2: training.seq_len = 0: must be at least 1 and at most 2147483647");
  EXPECT_EQ(parse_error("[optimizer]\nlr = -1\n"), "run.toml:2: optimizer.lr = -1: must be at least 0 and at most 1e+30");
  EXPECT_EQ(parse_error("[optimizer]\nlr = nan\n"), "run.toml:2: optimizer.lr = nan: must be at least 0 and at most 1e+30");
  EXPECT_EQ(parse_error("[optimizer]\nlr = inf\n"), "run.toml:2: optimizer.lr = inf: must be at least 0 and at most 1e+30");
  EXPECT_EQ(parse_error("[optimizer]\nbetas = [0.9, 1.0]\n"), "run.toml:2: optimizer.betas = 1.0: must be at least 0 and below 1");
  EXPECT_EQ(parse_error("[optimizer]\nbetas = [0.9]\n"), "run.toml:2: optimizer.betas = [0.9]: must be a list of 2");
  EXPECT_EQ(parse_error("[precision]\namax_history_len = 0\n"),
            "run.toml:2: precision.amax_history_len = 0: must be at least 1 and at most 1048576");
  EXPECT_EQ(parse_error("[lr_scheduler]\ndecay = 'cosin'\n"),
            "run.toml:2: lr_scheduler.decay = \"cosin\": must be one of cosine | linear | wsd | constant (did you mean cosine?)");
  EXPECT_EQ(parse_error("[precision]\nrecipe = 'fp8_blok'\n"),
            "run.toml:2: precision.recipe = \"fp8_blok\": must be one of bf16 | fp32 | fp8_block | fp8_current | fp8_delayed | "
            "fp8_rowwise | mxfp8 (did you mean fp8_block?)");
  EXPECT_EQ(parse_error("[run]\nseed = -1\n"), "run.toml:2: run.seed = -1: must be at least 0");
}

TEST(Config, BrokenTomlNamesItsLine) {
  EXPECT_EQ(parse_error("[run]\nname = \"a\n").rfind("run.toml:2: ", 0), 0u) << parse_error("[run]\nname = \"a\n");
  EXPECT_EQ(parse_error("[run\n").rfind("run.toml:1: ", 0), 0u);
  EXPECT_EQ(parse_error("[run]\nseed = 1\nseed = 2\n").rfind("run.toml:3: ", 0), 0u);
}

TEST(Config, PathsAreNoUrls) {
  const std::string why = ": s3:// is not supported; give a path of a file system that is mounted here";
  for (const std::string key : {"run.output_dir", "model.config", "checkpoint.local_dir"}) {
    const std::string option = key + "=s3://bucket/x";
    EXPECT_EQ(override_error(option), "--" + option + why);
  }
  const std::string other = ": gs:// is not supported; give s3://BUCKET/PREFIX or a path of a file system that is mounted here";
  for (const std::string key :
       {"model.init_from", "lora.init_from", "data.source.0.path", "evaluation.source.0.path", "checkpoint.resume"}) {
    EXPECT_EQ(override_error(key + "=s3://bucket/x"), "");
    EXPECT_EQ(override_error(key + "=gs://bucket/x"), "--" + key + "=gs://bucket/x" + other);
  }
  EXPECT_EQ(parse_error("[run]\noutput_dir = 's3://b'\n"), "run.toml:2: run.output_dir = \"s3://b\"" + why);
  EXPECT_EQ(override_error("run.output_dir=./s3://b"), "");
  EXPECT_NE(override_error("run.output_dir=~/x").find("`~` is not your home folder here; give the whole path"),
            std::string::npos);
  EXPECT_EQ(override_error("run.output_dir=./~/x"), "");
  EXPECT_EQ(override_error("run.name=s3://b"), "");
}

TEST(Config, AnOptionHasALimitOfDepth) {
  std::string path = "a";
  for (int i = 0; i < 60'000; ++i) path += ".a";
  const std::string message = override_error(path + "=1");
  EXPECT_NE(message.find("nested deeper than 64 levels"), std::string::npos);
  EXPECT_LT(message.size(), 300u);
}

TEST(Config, AValueThatNeverWorksIsNone) {
  EXPECT_EQ(override_error("precision.attention=fp16"),
            "--precision.attention=fp16: must be one of bf16 | fp8_forward | fp8 (did you mean bf16?)");
  EXPECT_EQ(override_error("precision.recipe=fp8"), "--precision.recipe=fp8: must be one of " + recipe_choices() +
                                                        " (did you mean fp8_block, fp8_current, fp8_delayed or fp8_rowwise?)");
}

TEST(Config, OverridesTakeTomlAndBareText) {
  Config c;
  for (const char* assignment :
       {"optimizer.lr=1e-4", "run.name=42", "precision.recipe=fp8_block", "precision.recipe=\"fp8_current\"", "run.deterministic=true",
        "optimizer.betas=[0.8, 0.9]", "precision.skip=lm_head,*.down_proj", "model.config=llama2-7b", "precision.power_of_2=false",
        "data.source.0.path=a=b", "data.source.1.path=c", "data.source.0.weight=2", "model.rope_scaling.factor=4", "model.vocab_size=512",
        "checkpoint.resume=out/x/step-00000100"}) {
    apply_override(c, assignment);
  }
  EXPECT_EQ(c.optimizer.lr, 1e-4);
  EXPECT_EQ(c.run.name, "42");
  EXPECT_EQ(c.precision.recipe, "fp8_current");
  EXPECT_TRUE(c.run.deterministic);
  EXPECT_EQ(c.optimizer.betas, (std::array<double, 2>{0.8, 0.9}));
  EXPECT_EQ(c.precision.skip, (std::vector<std::string>{"lm_head", "*.down_proj"}));
  EXPECT_EQ(c.precision.power_of_2, "false");
  ASSERT_EQ(c.data.source.size(), 2u);
  EXPECT_EQ(c.data.source[0].path, "a=b");
  EXPECT_EQ(c.data.source[0].weight, 2.0);
  EXPECT_EQ(c.model.rope_scaling->factor, 4.0);
  EXPECT_EQ(*c.model.vocab_size, 512);
  apply_override(c, "precision.skip=[]");
  EXPECT_TRUE(c.precision.skip.empty());
  apply_override(c, "precision.skip=[\"a\", \"b\"]");
  EXPECT_EQ(c.precision.skip.size(), 2u);
  apply_override(c, "optimizer.betas=0.7,0.8");
  EXPECT_EQ(c.optimizer.betas[1], 0.8);
  apply_override(c, "data.source=[{path = \"z\"}]");
  EXPECT_EQ(c.data.source.size(), 1u);
}

TEST(Config, WrongOverridesNameThemselves) {
  EXPECT_EQ(override_error("optimizer.lr=fast"), "--optimizer.lr=fast: must be a number, not a string");
  EXPECT_EQ(override_error("optimizer.lr"), "--optimizer.lr: must be --section.key=value");
  EXPECT_EQ(override_error("=3"), "--=3: must be --section.key=value");
  EXPECT_EQ(override_error("optimizer.learning_rate=1"), "--optimizer.learning_rate=1: optimizer.learning_rate: unknown key (did you mean optimizer.lr?)");
  EXPECT_EQ(override_error("precision.skip=[a"), "--precision.skip=[a: not a TOML value");
  EXPECT_EQ(override_error("training.seq_len=0"), "--training.seq_len=0: must be at least 1 and at most 2147483647");
  EXPECT_EQ(override_error("data.source.2.path=x"),
            "--data.source.2.path=x: there is no data.source.2; data.source.0 adds one");
  EXPECT_EQ(override_error("data.source.path=x"),
            "--data.source.path=x: data.source is a list; give the number of an element: --data.source.0.path");
  EXPECT_EQ(override_error("data.source=[{path='c',weight=-1}]"),
            "--data.source=[{path='c',weight=-1}]: data.source.weight = -1: must be above 0");
  EXPECT_EQ(override_error("run.name=\xff"), "--run.name=\\xff: not UTF-8 text");
  EXPECT_NE(override_error("training.steps=1\nseed=3"), "");
}

TEST(Config, StepsAndEpochsAreOneThing) {
  EXPECT_EQ(parse_error("[training]\nsteps = 10\nepochs = 2\n"), "run.toml: training.steps = 10 and training.epochs = 2: give one of them");
  Config c = parse_config("[training]\nepochs = 2\n", "x");
  apply_override(c, "training.steps=5");
  EXPECT_EQ(c.training.steps, 5);
  EXPECT_EQ(c.training.epochs, 0.0);
  apply_override(c, "training.epochs=0.5");
  EXPECT_EQ(c.training.steps, 0);
  EXPECT_EQ(check_error(kWhole + "[training]\nsteps = 0\n"), "run.toml: training.steps = 0: must be at least 1, or give training.epochs");
}

TEST(Config, ChecksWhatOnlyMakesSenseTogether) {
  EXPECT_EQ(check_error(kWhole), "");
  EXPECT_EQ(check_error("[[data.source]]\npath = 'x'\n"),
            "run.toml: no model: give [model] config = \"PRESET\", init_from = \"DIRECTORY\" or an architecture (hidden_size, ...)");
  EXPECT_EQ(check_error("[model]\nconfig = 'a'\ninit_from = 'b'\n"), "run.toml: model.config = \"a\" and model.init_from = \"b\": give one of them");
  EXPECT_EQ(check_error("[model]\nhidden_size = 64\n"),
            "run.toml: no data: add [[data.source]] with path = \"PREFIX\" of a corpus that `octet data prepare` made");
  EXPECT_EQ(check_error("[model]\nhidden_size = 64\n[[data.source]]\nweight = 1\n"), "run.toml: a [[data.source]] has no path");
  EXPECT_EQ(check_error(kWhole + "[data]\nsplit = [0.9, 0.2]\n"), "run.toml: data.split = [0.9, 0.2]: must add up to 1");
  EXPECT_EQ(check_error(kWhole + "[training]\nmicro_batch_size = 3\n"),
            "run.toml: training.global_batch_size = 64: must be a multiple of training.micro_batch_size = 3: give "
            "--training.global_batch_size=66");
}

// No GPU has attention in FP8 for ranks that share sequences, or for documents. A CPU has it, when asked to emulate.
TEST(Config, AttentionInFp8ReadsWholeSequencesOfOneDocument) {
  const auto error = [](const std::string& settings, std::int64_t ranks = 1) {
    return check_error(kWhole + "[precision]\nattention = 'fp8'\n" + settings, ranks);
  };
  EXPECT_EQ(error(""), "");
  EXPECT_EQ(
      error("[parallel]\ncontext = 2\n", 2),
      "run.toml: precision.attention = \"fp8\" with parallel.context = 2: ranks that share sequences exchange keys in BF16; "
      "use precision.attention = \"bf16\", or parallel.tensor instead of parallel.context");
  for (const std::string documents : {"document_mask = true", "packing = 'documents'"}) {
    for (const std::string device : {"cpu", "cuda"}) {
      const std::string on = "[data]\n" + documents + "\nsource = [{path = 'x'}]\n[run]\ndevice = '" + device + "'\n";
      const auto with = [&](const std::string& precision) {
        return check_error("[model]\nhidden_size = 64\n[precision]\n" + precision + on);
      };
      EXPECT_EQ(with("attention = 'fp8_forward'\n"),
                "run.toml: precision.attention = \"fp8_forward\" with data.document_mask = true, or data.packing = "
                "\"documents\": no GPU keeps documents apart in FP8; use precision.attention = \"bf16\". "
                "precision.emulate = true lets a CPU do so");
      EXPECT_EQ(with("attention = 'fp8'\nemulate = true\n") == "", device == "cpu");
      EXPECT_EQ(with(""), "");
    }
  }
}

TEST(Config, AxesBeyondOneRankAreRefusedByName) {
  EXPECT_EQ(check_error(kWhole + "[parallel]\ntensor = 2\n"), "run.toml: parallel.tensor = 2: must divide the number of ranks, 1");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nreplicate = 4\n"), "run.toml: parallel.replicate = 4: must divide the number of ranks, 1");
  EXPECT_EQ(check_error(kWhole + "[parallel]\ncontext = 2\n"), "run.toml: parallel.context = 2: must divide the number of ranks, 1");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nshard = 8\n"), "run.toml: parallel.shard = 8: must be 1, the number of ranks, or -1");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nexpert = 2\n"), "run.toml: parallel.expert = 2: must divide parallel.shard = 1");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nexpert_lanes = 2\n"),
            "run.toml: parallel.expert_lanes = 2 with parallel.expert = 1: there is no exchange to hide");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nexpert = 2\nexpert_lanes = 2\npipeline = 2\n", 4),
            "run.toml: parallel.expert_lanes = 2 with parallel.pipeline = 2: pipeline stages run one micro-batch at a time; one "
            "of the two must be 1");
  EXPECT_EQ(check_error(kWhole + "[training]\nglobal_batch_size = 6\n[parallel]\nexpert = 2\nexpert_lanes = 2\n", 2),
            "run.toml: parallel.expert_lanes = 2 with 3 micro-batches a step on each rank: must be a multiple of 2: give "
            "--training.global_batch_size=8");
  EXPECT_EQ(check_error(kWhole + "[training]\nglobal_batch_size = 8\n[parallel]\nexpert = 2\nexpert_lanes = 2\n", 2), "");
  const std::string interleaved =
      "[parallel]\nshard = 2\npipeline = 2\npipeline_schedule = \"interleaved\"\npipeline_chunks = 2\n";
  for (const int batch : {5, 6})  // neither a multiple of two ranks, nor of two ranks with two micro-batches each
    EXPECT_TRUE(check_error(kWhole + concat("[training]\nglobal_batch_size = ", batch, "\n", interleaved), 4)
                    .find(": give --training.global_batch_size=8") != std::string::npos);
  EXPECT_EQ(check_error(kWhole + "[parallel]\nshard = 0\n"), "run.toml: parallel.shard = 0: must be at least 1, or -1 for the ranks that remain");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nshard = 1\n"), "");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nreplicate = 2\ntensor = 2\n", 8), "");
  EXPECT_EQ(check_error(kWhole + "[parallel]\nshard = 4\ntensor = 2\n", 16),
            "run.toml: parallel.shard = 4: must be 8: 16 ranks divided by 2 for the other axes, or -1");
  EXPECT_EQ(check_error(kWhole + "[training]\nseq_len = 12\n[parallel]\nreplicate = 2\ncontext = 2\n", 4), "");
  EXPECT_EQ(check_error(kWhole + "[training]\nseq_len = 12\n[parallel]\ncontext = 4\n", 4),
            "run.toml: training.seq_len = 12: must be a multiple of 8, twice parallel.context = 4");
  EXPECT_EQ(check_error(kWhole + "[run]\noutput_dir = ''\n", 1), "run.toml: run.output_dir is empty; give a folder for the run");
  EXPECT_EQ(check_error(kWhole + "[precision]\nreduce_amax = false\n", 8),
            "run.toml: precision.reduce_amax = false: must be true with 8 ranks, or their scales would differ");
}

TEST(Config, DifferencesAreListedByKey) {
  Config c = parse_config(kWhole, "x");
  const Json before = to_json(c);
  EXPECT_TRUE(differences(before, c).empty());
  c.optimizer.lr = 1;
  c.model.head_dim = 16;
  c.model.hidden_size.reset();
  const auto found = differences(before, c);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].key + " " + found[0].before + " " + found[0].now, "model.head_dim  16");
  EXPECT_EQ(found[1].key + " " + found[1].before + " " + found[1].now, "model.hidden_size 64 ");
  EXPECT_EQ(found[2].key + " " + found[2].before + " " + found[2].now, "optimizer.lr 0.0003 1.0");
  // These decide how this process starts and are no difference.
  c.checkpoint.resume = "none";
  c.checkpoint.allow = {"seed"};
  c.run.set_aside = true;
  EXPECT_EQ(differences(before, c).size(), 3u);
}

TEST(Config, KeysThatAnEarlierVersionDidNotHaveHadTheirDefaults) {
  Config c = parse_config(kWhole, "x");
  Json before = to_json(c);
  before["data"]["source"][0].erase("split");
  before["data"].erase("document_mask");
  before.erase("anomaly");
  EXPECT_TRUE(differences(before, c).empty());
  c.data.source[0].split = "train";
  const auto found = differences(before, c);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key + " " + found[0].before, "data.source.0.split \"auto\"");
  for (const Json& damaged : {Json(), Json("text"), json_of(R"({"data": {"source": ["a"]}})"), json_of(R"({"data": 1})")})
    EXPECT_FALSE(differences(damaged, c).empty()) << damaged;
}

// What is now "rollback" was "none".
TEST(Config, TheOldNameOfARemedyIsNoDifference) {
  const Config c = parse_config(kWhole + "[anomaly]\nremedy = 'none'\n", "x");
  EXPECT_EQ(c.anomaly.remedy, "rollback");
  Json before = to_json(c);
  before["anomaly"]["remedy"] = "none";
  EXPECT_TRUE(differences(before, c).empty());
}

TEST(Config, DifferencesOfSourcesAreListedByTheirNumber) {
  Config c = parse_config(kWhole + "[[data.source]]\npath = 'b'\n", "x");
  const Json before(nlohmann::json(to_json(c)));  // keys in another order, as in a manifest
  EXPECT_TRUE(differences(before, c).empty());
  c.data.source[1].split = "validation";
  const auto found = differences(before, c);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key + " " + found[0].before + " " + found[0].now, "data.source.1.split \"auto\" \"validation\"");
  c.data.source.pop_back();
  const auto fewer = differences(before, c);
  ASSERT_EQ(fewer.size(), 1u);
  EXPECT_EQ(fewer[0].key + " " + fewer[0].now, "data.source.1 ");
  apply_override(c, "data.source.1.path=b");
  apply_override(c, "data.source.2.path=c");
  const auto more = differences(before, c);
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].key + " " + more[0].before, "data.source.2 ");
  EXPECT_EQ(json_of(more[0].now)["path"], "c");
}

TEST(Config, FilesAreReadAndTheirAbsenceIsAConfigurationError) {
  const fs::path path = fs::temp_directory_path() / concat("octet-config-test-", ::getpid(), ".toml");
  std::ofstream(path) << kWhole;
  const std::vector<std::string> overrides = {"optimizer.lr=0.5"};
  EXPECT_EQ(load_config(path, overrides).optimizer.lr, 0.5);
  fs::remove(path);
  EXPECT_EQ(error_of([&] { load_config(path); }), path.string() + ": No such file or directory");
  EXPECT_EQ(error_of([&] { load_config("nowhere/quickstart.toml"); }),
            "nowhere/quickstart.toml: No such file or directory; Octet's sources have it in configs, and an installation in "
            "share/octet/configs");
}

}  // namespace
}  // namespace octet::train
