// The whole run, as its TOML file says it (docs/config.md). Every key, default, choice and range is declared once, here.
//
// Paths are relative to the current directory, not to the file.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/base/fields.h"
#include "octet/base/json.h"

namespace octet::models {
struct DecoderConfig;
}

namespace octet::train {

struct RunConfig {
  std::string name = "octet";
  std::string output_dir = "out/octet";
  std::uint64_t seed = 42;
  std::string device = "auto";
  bool deterministic = false;
  int threads = 0;
};
template <FieldsOf<RunConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "name"}, c.name);
  visit(Field{.name = "output_dir", .help = "metrics, checkpoints and the report of this run"}, c.output_dir);
  visit(Field{.name = "seed", .help = "of the weights and of the order of the data"}, c.seed);
  visit(Field{.name = "device", .choices = "auto | cpu | cuda"}, c.device);
  visit(Field{.name = "deterministic", .help = "same bits in every run; the CPU always is"}, c.deterministic);
  visit(Field{.name = "threads", .help = "of the CPU; 0: one per core", .range = kNotNegative}, c.threads);
}

struct RopeScalingConfig {
  std::string rope_type = "llama3";
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
};
template <FieldsOf<RopeScalingConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "rope_type", .choices = "llama3"}, c.rope_type);
  visit(Field{.name = "factor", .range = kAtLeastOne}, c.factor);
  visit(Field{.name = "low_freq_factor", .range = kPositive}, c.low_freq_factor);
  visit(Field{.name = "high_freq_factor", .range = kPositive}, c.high_freq_factor);
  visit(Field{.name = "original_max_position_embeddings", .range = kAtLeastOne}, c.original_max_position_embeddings);
}

// One of: a preset, a model directory, or the architecture itself under its Hugging Face names. With a preset or a directory
// the architecture keys that are given replace theirs. decoder_config() puts it together.
struct ModelConfig {
  std::string config;     // "" when not used
  std::string init_from;  // "" when not used
  std::optional<std::string> model_type;
  std::optional<std::int64_t> vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
      num_key_value_heads, head_dim, max_position_embeddings, sliding_window, num_local_experts,
      num_experts_per_tok;
  std::optional<double> rope_theta, rms_norm_eps, initializer_range, router_aux_loss_coef, router_z_loss_coef;
  std::optional<bool> tie_word_embeddings;
  std::optional<std::string> tokenizer, hidden_act;
  std::optional<double> layer_norm_eps, rotary_pct, rotary_emb_base;
  std::optional<bool> use_parallel_residual, attention_bias;
  std::optional<RopeScalingConfig> rope_scaling;
};
template <FieldsOf<ModelConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "config", .help = "a preset of configs/, a run's .toml or a config.json"}, c.config);
  visit(Field{.name = "init_from", .help = "Hugging Face directory; with config.json alone the weights start at random"},
        c.init_from);
  visit(Field{.name = "model_type", .help = "family: \"llama\" (default), \"mistral\", \"mixtral\" or \"gpt_neox\""}, c.model_type);
  visit(Field{.name = "vocab_size", .range = kAtLeastOne}, c.vocab_size);
  visit(Field{.name = "hidden_size", .range = kAtLeastOne}, c.hidden_size);
  visit(Field{.name = "intermediate_size", .help = "of the MLP", .range = kAtLeastOne}, c.intermediate_size);
  visit(Field{.name = "num_hidden_layers", .range = kAtLeastOne}, c.num_hidden_layers);
  visit(Field{.name = "num_attention_heads", .range = kAtLeastOne}, c.num_attention_heads);
  visit(Field{.name = "num_key_value_heads", .help = "default: as many as heads", .range = kAtLeastOne}, c.num_key_value_heads);
  visit(Field{.name = "head_dim", .help = "default: hidden_size / num_attention_heads", .range = kAtLeastOne}, c.head_dim);
  visit(Field{.name = "max_position_embeddings", .help = "longest sequence", .range = kAtLeastOne}, c.max_position_embeddings);
  visit(Field{.name = "sliding_window", .help = "of Mistral: tokens that a token sees at most; 0: all before it", .range = kNotNegative},
        c.sliding_window);
  visit(Field{.name = "num_local_experts", .help = "of Mixtral: in each layer", .range = kAtLeastOne}, c.num_local_experts);
  visit(Field{.name = "num_experts_per_tok", .help = "of Mixtral: that a token goes to", .range = kAtLeastOne}, c.num_experts_per_tok);
  visit(Field{.name = "router_aux_loss_coef", .help = "of Mixtral: how much balance between experts counts", .range = kNotNegative},
        c.router_aux_loss_coef);
  visit(Field{.name = "router_z_loss_coef", .help = "of Mixtral: how much large logits of the router count", .range = kNotNegative},
        c.router_z_loss_coef);
  visit(Field{.name = "rope_theta", .range = kPositive}, c.rope_theta);
  visit(Field{.name = "rms_norm_eps", .range = kPositive}, c.rms_norm_eps);
  visit(Field{.name = "initializer_range", .help = "deviation of the first weights", .range = kNotNegative}, c.initializer_range);
  visit(Field{.name = "tie_word_embeddings", .help = "embedding and head share their weight"}, c.tie_word_embeddings);
  visit(Field{.name = "tokenizer", .help = "\"byte\"; otherwise files of the model directory"}, c.tokenizer);
  visit(Field{.name = "hidden_act", .help = "gpt_neox: gelu (default), gelu_new, gelu_fast or gelu_pytorch_tanh"}, c.hidden_act);
  visit(Field{.name = "layer_norm_eps", .help = "gpt_neox", .range = kPositive}, c.layer_norm_eps);
  visit(Field{.name = "rotary_pct", .help = "gpt_neox: share of each head that is rotated", .range = kPositive}, c.rotary_pct);
  visit(Field{.name = "rotary_emb_base", .help = "gpt_neox", .range = kPositive}, c.rotary_emb_base);
  visit(Field{.name = "use_parallel_residual", .help = "gpt_neox: attention and MLP read the same input"}, c.use_parallel_residual);
  visit(Field{.name = "attention_bias", .help = "gpt_neox: of attention's linears"}, c.attention_bias);
  visit(Field{.name = "rope_scaling"}, c.rope_scaling);
}

struct SourceConfig {
  std::string path;
  double weight = 1.0;
  std::string split = "auto";
};
template <FieldsOf<SourceConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "path", .help = "prefix of a prepared corpus"}, c.path);
  visit(
      Field{.name = "weight", .help = "share of the samples, relative to the other sources of the same part", .range = kPositive},
      c.weight);
  visit(Field{.name = "split",
              .help = "auto: by data.split, or train where a source is for validation",
              .choices = "auto | train | validation"},
        c.split);
}

struct DataConfig {
  bool document_mask = false;
  std::array<double, 2> split = {0.98, 0.02};
  std::vector<SourceConfig> source;
};
template <FieldsOf<DataConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "document_mask", .help = "true: no token sees another document; on CUDA not with run.deterministic"},
        c.document_mask);
  visit(Field{.name = "split", .help = "train, held out; of every source where none is for validation", .range = kFraction},
        c.split);
  visit(Field{.name = "source", .help = "one [[data.source]] for each corpus: path, weight, split"}, c.source);
}

struct TrainingConfig {
  std::int64_t seq_len = 8192;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 64;
  std::int64_t steps = 1000;  // 0 exactly when epochs is above 0: the corpus decides
  double epochs = 0;
  std::string grad_dtype = "fp32";
  std::string reduce_dtype = "fp32";
};
template <FieldsOf<TrainingConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "seq_len", .help = "tokens of a sequence", .range = kAtLeastOne}, c.seq_len);
  visit(Field{.name = "micro_batch_size", .help = "sequences per data-parallel coordinate and micro-batch", .range = kAtLeastOne},
        c.micro_batch_size);
  visit(Field{.name = "global_batch_size", .help = "sequences per step; accumulation follows", .range = kAtLeastOne},
        c.global_batch_size);
  visit(Field{.name = "steps", .help = "0: given by epochs", .range = kNotNegative}, c.steps);
  visit(Field{.name = "epochs", .help = "0: given by steps", .range = kNotNegative}, c.epochs);
  visit(Field{.name = "grad_dtype", .help = "what wgrad accumulates into; reduce_dtype where gradients are sharded", .choices = "fp32 | bf16"}, c.grad_dtype);
  visit(Field{.name = "reduce_dtype", .help = "what crosses the wire", .choices = "fp32 | bf16"}, c.reduce_dtype);
}

struct OptimizerConfig {
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  std::string state_dtype = "fp32";
  bool master_weights = true;
};
template <FieldsOf<OptimizerConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "lr", .help = "peak learning rate", .range = kNotNegative}, c.lr);
  visit(Field{.name = "betas", .range = {.min = 0, .max = 1, .below_max = true}}, c.betas);
  visit(Field{.name = "eps", .range = kPositive}, c.eps);
  visit(Field{.name = "weight_decay", .help = "decoupled; of matrices, not of norms", .range = kNotNegative}, c.weight_decay);
  visit(Field{.name = "max_grad_norm", .help = "0: no clipping", .range = kNotNegative}, c.max_grad_norm);
  visit(Field{.name = "state_dtype", .help = "of the moments", .choices = "fp32 | bf16"}, c.state_dtype);
  visit(Field{.name = "master_weights", .help = "false: BF16 weights with stochastic rounding"}, c.master_weights);
}

struct LrSchedulerConfig {
  std::int64_t warmup_steps = 100;
  std::string decay = "cosine";
  double min_lr_factor = 0.1;
};
template <FieldsOf<LrSchedulerConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "warmup_steps", .range = kNotNegative}, c.warmup_steps);
  visit(Field{.name = "decay", .choices = "cosine | linear | wsd | constant"}, c.decay);
  visit(Field{.name = "min_lr_factor", .help = "last learning rate / lr", .range = kFraction}, c.min_lr_factor);
}

// "bf16 | fp8_block | ...": the registry of recipes, as choices.
std::string recipe_choices();

struct PrecisionConfig {
  std::string recipe = "fp8_delayed";
  std::string format = "hybrid";
  int amax_history_len = 1024;
  std::string amax_compute_algo = "max";
  int margin = 0;
  bool reduce_amax = true;
  std::string power_of_2 = "auto";
  double amax_epsilon = 0.0;
  std::string accumulation = "auto";
  std::string wgrad = "recipe";
  std::string head = "bf16";
  std::string attention = "bf16";
  bool weight_transpose_cache = true;
  std::vector<std::string> skip;
  bool emulate = false;
};
template <FieldsOf<PrecisionConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "recipe", .choices = recipe_choices()}, c.recipe);
  visit(Field{.name = "format", .help = "of per-tensor recipes", .choices = "hybrid | e4m3"}, c.format);
  visit(Field{.name = "amax_history_len", .help = "steps that fp8_delayed looks back", .range = {.min = 1, .max = 1 << 20}},
        c.amax_history_len);
  visit(Field{.name = "amax_compute_algo", .choices = "max | most_recent"}, c.amax_compute_algo);
  visit(Field{.name = "margin", .help = "scales are divided by 2^margin", .range = {.min = -32, .max = 32}}, c.margin);
  visit(Field{.name = "reduce_amax", .help = "over ranks"}, c.reduce_amax);
  visit(Field{.name = "power_of_2", .help = "scales; auto: fp8_block only", .choices = "auto | true | false"}, c.power_of_2);
  visit(Field{.name = "amax_epsilon", .help = "smallest amax; fp8_delayed ignores it", .range = kNotNegative}, c.amax_epsilon);
  visit(Field{.name = "accumulation", .help = "auto: by recipe", .choices = "auto | fast | precise"}, c.accumulation);
  visit(Field{.name = "wgrad", .choices = "recipe | bf16"}, c.wgrad);
  visit(Field{.name = "head", .choices = "bf16 | recipe"}, c.head);
  visit(Field{.name = "attention", .choices = "bf16 | fp8"}, c.attention);
  visit(Field{.name = "weight_transpose_cache", .help = "false: a byte less a weight, and a pass over its codes a micro-batch"},
        c.weight_transpose_cache);
  visit(Field{.name = "skip", .help = "patterns of layer names kept in BF16"}, c.skip);
  visit(Field{.name = "emulate", .help = "let a recipe run where the device has no path for it, slowly"}, c.emulate);
}

struct EvaluationConfig {
  std::int64_t interval = 100;
  std::int64_t sequences = 64;
};
template <FieldsOf<EvaluationConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "interval", .help = "steps; 0: never", .range = kNotNegative}, c.interval);
  visit(Field{.name = "sequences", .help = "of held-out text", .range = kNotNegative}, c.sequences);
}

struct ParallelConfig {
  std::int64_t replicate = 1;
  std::int64_t shard = -1;
  std::int64_t context = 1;
  std::int64_t tensor = 1;
  std::int64_t expert = 1;
  std::string reshard_after_forward = "auto";
  std::string gradients = "auto";
};
template <FieldsOf<ParallelConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "replicate", .range = kAtLeastOne}, c.replicate);
  visit(Field{.name = "shard", .help = "-1: the ranks that remain", .range = {.min = -1}}, c.shard);
  visit(Field{.name = "context", .help = "ranks that share each sequence; twice as many divide seq_len", .range = kAtLeastOne}, c.context);
  visit(Field{.name = "tensor", .help = "ranks that share each layer, neighbours: heads, vocabulary and tokens must divide", .range = kAtLeastOne}, c.tensor);
  visit(
      Field{.name = "expert", .help = "ranks of shard that share the experts of a layer out; divides both", .range = kAtLeastOne},
      c.expert);
  visit(Field{.name = "reshard_after_forward", .choices = "auto | true | false"}, c.reshard_after_forward);
  visit(Field{.name = "gradients", .choices = "auto | whole | sharded"}, c.gradients);
}

struct ActivationCheckpointConfig {
  std::string mode = "none";
};
template <FieldsOf<ActivationCheckpointConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "mode", .help = "what backward computes again", .choices = "none | selective | full"}, c.mode);
}

struct CheckpointConfig {
  std::int64_t interval = 500;
  std::int64_t keep_latest_k = 3;
  std::string resume = "auto";
  bool async = true;
};
template <FieldsOf<CheckpointConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "interval", .help = "steps; 0: at the end only", .range = kNotNegative}, c.interval);
  visit(Field{.name = "keep_latest_k", .help = "0: all", .range = kNotNegative}, c.keep_latest_k);
  visit(Field{.name = "resume", .help = "auto (the newest of output_dir, if any), none, or a checkpoint's folder"}, c.resume);
  visit(Field{.name = "async", .help = "write behind the next steps"}, c.async);
}

struct AnomalyConfig {
  std::int64_t max_rollbacks = 3;
};
template <FieldsOf<AnomalyConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "max_rollbacks", .help = "to the last good checkpoint after a spike; then exit 77", .range = kNotNegative},
        c.max_rollbacks);
}

struct MetricsConfig {
  std::int64_t log_freq = 10;
  bool tensorboard = true;
  std::int64_t health_freq = 100;
};
template <FieldsOf<MetricsConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "log_freq", .help = "steps", .range = kAtLeastOne}, c.log_freq);
  visit(Field{.name = "tensorboard"}, c.tensorboard);
  visit(Field{.name = "health_freq", .help = "steps between FP8 health samples; 0: none", .range = kNotNegative}, c.health_freq);
}

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  PrecisionConfig precision;
  EvaluationConfig evaluation;
  ParallelConfig parallel;
  ActivationCheckpointConfig activation_checkpoint;
  CheckpointConfig checkpoint;
  AnomalyConfig anomaly;
  MetricsConfig metrics;

  std::string file;  // it was read from, for messages; no key
};
template <FieldsOf<Config> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "run"}, c.run);
  visit(Field{.name = "model"}, c.model);
  visit(Field{.name = "data"}, c.data);
  visit(Field{.name = "training"}, c.training);
  visit(Field{.name = "optimizer"}, c.optimizer);
  visit(Field{.name = "lr_scheduler"}, c.lr_scheduler);
  visit(Field{.name = "precision"}, c.precision);
  visit(Field{.name = "evaluation"}, c.evaluation);
  visit(Field{.name = "parallel"}, c.parallel);
  visit(Field{.name = "activation_checkpoint"}, c.activation_checkpoint);
  visit(Field{.name = "checkpoint"}, c.checkpoint);
  visit(Field{.name = "anomaly"}, c.anomaly);
  visit(Field{.name = "metrics"}, c.metrics);
}

// All of these throw Error{config}, in one line with the value and the file and line, or the option.

// `overrides` are "section.key=value", applied in order after the file. Keys, types, ranges and choices are checked; what only
// makes sense together is left to check_config().
Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});
// The same of text; `source` is what messages call it.
Config parse_config(std::string_view text, const std::string& source);

// "section.key=value": the value is TOML, or a bare string; a list may also be written a,b,c; an element of a list of tables is
// named by its number ("data.source.0.path=corpus").
void apply_override(Config& config, const std::string& assignment);

// What no single key can say: a model and data are given, batch sizes divide, the axes of [parallel] are `ranks` ranks.
void check_config(const Config& config, std::int64_t ranks = 1);

// A TOML document of every key, which parse_config() reads back to an equal Config.
std::string print_config(const Config& config);
Json to_json(const Config& config);

// Keys whose values differ between `config` and an earlier to_json() of one, in the order of the file. A key that is
// missing there, of an earlier version, had its default; checkpoint.resume, which says how a process starts, is none of them. For
// messages on resuming.
struct Difference {
  std::string key;
  std::string before, now;  // as JSON; "" when not set
};
std::vector<Difference> differences(const Json& before, const Config& config);

// " (did you mean optimizer.lr?)" for an unknown key, which may be another program's name for it; or "".
std::string advise_key(const std::string& path);

// The model's architecture: the preset, directory or keys of [model]. Throws Error{data} for a model directory's mistakes.
// In the place of a directory that has gone stands the model of the checkpoint that the run goes on from.
models::DecoderConfig decoder_config(const Config& config);
// Whether model.init_from is given and has no config.json (any more).
bool init_from_is_gone(const Config& config);
// "llama2-7b", "llama3.1-8b", ... in alphabetical order: what [model] config may name.
std::vector<std::string> preset_names();

}  // namespace octet::train
