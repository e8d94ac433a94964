// A whole run as its TOML file describes it. Every key is declared once, here or in config_architecture.h, config_evaluation.h,
// config_health.h and config_lora.h: its default, its choices or range, and the sentence that --print-config,
// docs/reference/configuration.md and shell completion show.
//
// Paths are relative to the current directory, not to the file.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/base/fields.h"
#include "octet/base/json.h"
#include "octet/recipes/registry.h"
#include "octet/train/config_architecture.h"
#include "octet/train/config_checkpoint.h"
#include "octet/train/config_evaluation.h"
#include "octet/train/config_health.h"
#include "octet/train/config_lora.h"

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
  bool set_aside = false;
};
template <FieldsOf<RunConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "name", .help = "Name of the run in reports and logs."}, c.name);
  visit(Field{.name = "output_dir",
              .help = "Folder of metrics, checkpoints, the exported model and the report.", .value = "DIR"},
        c.output_dir);
  visit(Field{.name = "seed", .help = "Seed of the initial weights and of the order of the data."}, c.seed);
  visit(Field{.name = "device",
              .help = "Device that computes; auto takes a GPU if there is one.", .choices = "auto | cpu | cuda"},
        c.device);
  visit(Field{.name = "deterministic",
              .help = "Repeats the same bits in every run on a GPU, more slowly; the CPU always repeats them."},
        c.deterministic);
  visit(Field{.name = "threads",
              .help = "CPU threads, at most four per core; 0 takes one per core.", .value = "threads", .range = {.min = 0, .max = 2147483647}},
        c.threads);
  visit(Field{.name = "set_aside",
              .help = "If output_dir holds an earlier run that checkpoint.resume does not continue: true moves that run to "
                      "history/, false refuses to start."},
        c.set_aside);
}

struct SourceConfig {
  std::string path;
  double weight = 1.0;
  std::string split = "auto";
};
template <FieldsOf<SourceConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "path",
              .help = "Prefix of a corpus that `octet data prepare` wrote; may be s3://BUCKET/PREFIX.",
              .value = "PREFIX",
              .s3 = true},
        c.path);
  visit(Field{.name = "weight",
              .help = "Share of the samples, relative to the other sources for the same use.", .range = kPositive},
        c.weight);
  visit(Field{.name = "split",
              .help = "What the source is for; auto splits it by data.split, or trains on all of it if any source is for validation.",
              .choices = "auto | train | validation"},
        c.split);
}

struct DataConfig {
  bool document_mask = false;
  std::string packing = "stream";
  std::array<double, 2> split = {0.98, 0.02};
  std::string split_by = "documents";
  std::vector<SourceConfig> source;
};
template <FieldsOf<DataConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(
      Field{.name = "document_mask",
            .help = "Attention stays within a document, and positions begin anew; on a GPU not together with run.deterministic."},
      c.document_mask);
  visit(Field{.name = "packing",
              .help = "stream cuts the stream of all documents into sequences; documents packs whole documents and separates "
                      "them as document_mask does.",
              .choices = "stream | documents"},
        c.packing);
  visit(Field{.name = "split",
              .help = "Shares of each corpus to train on and to hold out; unused if a source is for validation.", .range = kFraction},
        c.split);
  visit(Field{.name = "split_by",
              .help = "What data.split holds out: whole documents, or windows of seq_len tokens that may share a document with training.",
              .choices = "documents | windows"},
        c.split_by);
  visit(Field{.name = "source", .help = "One [[data.source]] table for each corpus, with path, weight and split."}, c.source);
}

// The product of two of these, such as the tokens of a step, fits into 64 bits.
inline constexpr Range kBatchRange{.min = 1, .max = 2147483647};
// AdamW and the random numbers of a step count steps in 32 bits.
inline constexpr Range kStepRange{.min = 0, .max = 4294967295};

struct TrainingConfig {
  std::int64_t seq_len = 8192;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 64;
  std::int64_t steps = 1000;  // 0 exactly when epochs is above 0: the corpus decides
  double epochs = 0;
  std::string grad_dtype = "fp32";
  std::string reduce_dtype = "fp32";
  bool mask = true;
};
template <FieldsOf<TrainingConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "seq_len", .help = "Length of a sequence.", .value = "tokens", .range = kBatchRange}, c.seq_len);
  visit(Field{.name = "micro_batch_size",
              .help = "Sequences that a data-parallel rank computes at once.", .value = "sequences", .range = kBatchRange},
        c.micro_batch_size);
  visit(Field{.name = "global_batch_size",
              .help = "Sequences in a step, all ranks together; the number of micro-batches follows.",
              .value = "sequences", .range = kBatchRange},
        c.global_batch_size);
  visit(Field{.name = "steps",
              .help = "Length of the run; 0 if training.epochs sets it.", .value = "steps", .range = kStepRange},
        c.steps);
  visit(Field{.name = "epochs",
              .help = "Length of the run in passes over the data; 0 if training.steps sets it.", .value = "epochs", .range = kNotNegative},
        c.epochs);
  visit(Field{.name = "grad_dtype",
              .help = "Type in which weight gradients accumulate; sharded gradients have reduce_dtype.", .choices = "fp32 | bf16"},
        c.grad_dtype);
  visit(Field{.name = "reduce_dtype", .help = "Type in which ranks exchange gradients.", .choices = "fp32 | bf16"},
        c.reduce_dtype);
  visit(
      Field{.name = "mask",
            .help =
                "Only tokens that a corpus's loss mask names are predicted with loss; corpora without one are trained on whole."},
      c.mask);
}

struct OptimizerConfig {
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  std::string state_dtype = "fp32";
  bool master_weights = true;
  bool offload = false;
};
template <FieldsOf<OptimizerConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "lr", .help = "Peak learning rate of AdamW.", .range = kNotNegativeFp32}, c.lr);
  visit(Field{.name = "betas", .help = "Decay rates of the two moments.", .range = {.min = 0, .max = 1, .below_max = true}}, c.betas);
  visit(Field{.name = "eps", .help = "Added to the root of the second moment.", .range = kEpsilon}, c.eps);
  visit(Field{.name = "weight_decay",
              .help = "Decoupled weight decay of matrices; norms have none.", .range = kNotNegativeFp32},
        c.weight_decay);
  visit(Field{.name = "max_grad_norm",
              .help = "Gradients are clipped to this global norm; 0 clips nothing.", .range = kNotNegativeFp32},
        c.max_grad_norm);
  visit(Field{.name = "state_dtype",
              .help = "Type of the two moments. fp8: E4M3 with a scale for each 128 elements.",
              .choices = "fp32 | bf16 | fp8"},
        c.state_dtype);
  visit(Field{.name = "master_weights",
              .help = "Keeps FP32 weights; false keeps BF16 weights with stochastic rounding."},
        c.master_weights);
  visit(Field{.name = "offload",
              .help = "Keeps moments and master weights in host memory. An optimizer step fetches them and copies them back."},
        c.offload);
}

struct LrSchedulerConfig {
  std::int64_t warmup_steps = 100;
  std::string decay = "cosine";
  double min_lr_factor = 0.1;
};
template <FieldsOf<LrSchedulerConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "warmup_steps",
              .help = "Steps in which the learning rate rises linearly to its peak.", .value = "steps", .range = kNotNegative},
        c.warmup_steps);
  visit(Field{.name = "decay", .help = "Shape of the decay after warm-up.", .choices = "cosine | linear | wsd | constant"}, c.decay);
  visit(Field{.name = "min_lr_factor", .help = "Last learning rate divided by the peak.", .range = kFraction}, c.min_lr_factor);
}

// "bf16 | fp8_block | ...": the registry of recipes, as choices.
std::string recipe_choices();

struct AccumulationConfig : recipes::AccumulationOptions {};
template <FieldsOf<AccumulationConfig> C>
void visit_fields(C& c, auto&& visit) {
  const char* const choices = "auto | fast | precise";
  visit(Field{.name = "fprop", .help = "Accumulation of Y = X W^T.", .choices = choices}, c.fprop);
  visit(Field{.name = "dgrad", .help = "Accumulation of gX = G W.", .choices = choices}, c.dgrad);
  visit(Field{.name = "wgrad", .help = "Accumulation of gW = G^T X.", .choices = choices}, c.wgrad);
}

struct PrecisionConfig {
  std::string recipe = "fp8_delayed";
  std::string preset = "safe";
  std::string format = "hybrid";
  int amax_history_len = 1024;
  std::string amax_compute_algo = "max";
  int margin = 0;
  bool calibrate = true;
  bool reduce_amax = true;
  std::string power_of_2 = "auto";
  double amax_epsilon = 0.0;
  AccumulationConfig accumulation = {};
  std::string wgrad = "recipe";
  std::string head = "bf16";
  std::string attention = "bf16";
  bool weight_transpose_cache = true;
  std::vector<std::string> skip;
  bool emulate = false;
};
template <FieldsOf<PrecisionConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "recipe", .help = "Precision of the linear layers.", .choices = recipe_choices()}, c.recipe);
  visit(Field{.name = "preset",
              .help = "fast sets accumulation.dgrad = \"fast\", which raised no measured loss with fp8_delayed and was not measured "
                      "with other recipes. Keys that are given override it.",
              .choices = "safe | fast"},
        c.preset);
  visit(Field{.name = "format",
              .help = "FP8 format of per-tensor recipes; hybrid is E4M3 forward and E5M2 for gradients.", .choices = "hybrid | e4m3"},
        c.format);
  visit(Field{.name = "amax_history_len",
              .help = "Steps that fp8_delayed looks back for the largest amax.", .value = "steps", .range = {.min = 1, .max = 1 << 20}},
        c.amax_history_len);
  visit(Field{.name = "amax_compute_algo",
              .help = "How fp8_delayed reads an amax out of its history.", .choices = "max | most_recent"},
        c.amax_compute_algo);
  visit(Field{.name = "margin", .help = "Divides the scales of fp8_delayed by 2^margin.", .range = {.min = -32, .max = 32}}, c.margin);
  visit(Field{.name = "calibrate",
              .help = "Sets the scales of fp8_delayed before step 1 from the weights and from step 1's batch; false begins at scale 1."},
        c.calibrate);
  visit(Field{.name = "reduce_amax", .help = "Takes each amax over all ranks; false is refused with more than one rank."}, c.reduce_amax);
  visit(Field{.name = "power_of_2",
              .help = "Rounds scales down to powers of 2; auto does so for fp8_block only; fp8_delayed ignores it.",
              .choices = "auto | true | false"},
        c.power_of_2);
  visit(Field{.name = "amax_epsilon",
              .help = "Smallest amax that sets a scale; fp8_delayed ignores it.", .range = kNotNegativeFp32},
        c.amax_epsilon);
  visit(Field{.name = "accumulation",
              .help = "How FP8 products accumulate on Hopper: one word for all, or { fprop, dgrad, wgrad }; auto leaves it to the recipe.",
              .choices = "auto | fast | precise", .single = true},
        c.accumulation);
  visit(Field{.name = "wgrad", .help = "Precision of the weight gradient of each linear.", .choices = "recipe | bf16"}, c.wgrad);
  visit(Field{.name = "head", .help = "Precision of the output head.", .choices = "bf16 | recipe"}, c.head);
  visit(Field{.name = "attention",
              .help = "Precision of attention: fp8_forward uses FP8 only in the forward pass, fp8 also "
                      "in the backward pass. Both need fp8_delayed.",
              .choices = "bf16 | fp8_forward | fp8"},
        c.attention);
  visit(Field{.name = "weight_transpose_cache",
              .help = "Keeps transposed FP8 weights; false saves a byte per parameter and transposes in each micro-batch."},
        c.weight_transpose_cache);
  visit(Field{.name = "skip",
              .help = "Patterns of layer names that stay in BF16; a pattern that matches nothing is an error.", .value = "PATTERN"},
        c.skip);
  visit(Field{.name = "emulate", .help = "Lets a recipe run slowly on a device that has no instructions for it."}, c.emulate);
}

// More than any cluster has, and few enough that products of these numbers do not overflow.
inline constexpr Range kRanksRange{.min = 1, .max = 1 << 20};

struct ParallelConfig {
  std::int64_t replicate = 1;
  std::int64_t shard = -1;
  std::int64_t context = 1;
  std::int64_t tensor = 1;
  std::int64_t expert = 1;
  std::int64_t expert_lanes = 1;
  std::int64_t pipeline = 1;
  std::string pipeline_schedule = "1f1b";
  std::int64_t pipeline_chunks = 1;
  std::int64_t pipeline_head_blocks = -1;
  std::string reshard_after_forward = "auto";
  std::string gradients = "auto";
};
template <FieldsOf<ParallelConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "replicate",
              .help = "Number of groups of ranks that each hold a whole copy of the weights.", .value = "ranks", .range = kRanksRange},
        c.replicate);
  visit(Field{.name = "shard",
              .help = "Ranks that share the parameters and the batch; -1 takes the ranks that remain.",
              .value = "ranks", .range = {.min = -1, .max = kRanksRange.max}},
        c.shard);
  visit(Field{.name = "context",
              .help = "Ranks that share each sequence; seq_len must be a multiple of twice this number.",
              .value = "ranks", .range = kRanksRange},
        c.context);
  visit(Field{.name = "tensor",
              .help = "Neighbouring ranks that share each layer; heads, vocabulary and tokens must divide by it.",
              .value = "ranks", .range = kRanksRange},
        c.tensor);
  visit(Field{.name = "expert",
              .help = "Ranks of shard that share the experts of a layer; must divide shard and the number of experts.",
              .value = "ranks", .range = kRanksRange},
        c.expert);
  visit(Field{.name = "expert_lanes",
              .help = "2 lets two micro-batches take turns: one computes while ranks exchange the other's tokens for experts.",
              .value = "lanes",
              .range = {.min = 1, .max = 2}},
        c.expert_lanes);
  visit(Field{.name = "pipeline",
              .help = "Stages that share the blocks of the model. Micro-batches pass through them in order.",
              .value = "stages",
              .range = kRanksRange},
        c.pipeline);
  visit(Field{.name = "pipeline_schedule",
              .help = "Order of forward and backward on a stage; interleaved needs pipeline_chunks.",
              .choices = "1f1b | interleaved"},
        c.pipeline_schedule);
  visit(Field{.name = "pipeline_chunks",
              .help = "Runs of consecutive blocks on each stage: 1 with 1f1b, at least 2 with interleaved.",
              .value = "chunks", .range = kRanksRange},
        c.pipeline_chunks);
  visit(Field{.name = "pipeline_head_blocks",
              .help = "How many blocks the head counts as when blocks are divided among stages; -1 estimates it.",
              .value = "blocks",
              .range = {.min = -1, .max = kRanksRange.max}},
        c.pipeline_head_blocks);
  visit(Field{.name = "reshard_after_forward",
              .help = "Gathers weights for each use (true) or keeps them for a step (false); auto keeps them if they fit.",
              .choices = "auto | true | false"},
        c.reshard_after_forward);
  visit(Field{.name = "gradients",
              .help = "Keeps gradients whole or sharded during a step; auto keeps them whole if they fit beside kept weights and "
                      "a step has several micro-batches.",
              .choices = "auto | whole | sharded"},
        c.gradients);
}

struct ActivationCheckpointConfig {
  std::string mode = "none";
  std::int64_t layers = -1;
};
template <FieldsOf<ActivationCheckpointConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "mode",
              .help = "Activations that backward computes again instead of keeping them.", .choices = "none | selective | full"},
        c.mode);
  visit(Field{.name = "layers",
              .help = "With mode = \"full\": the number of layers, counted from the first, that recompute everything; the others "
                      "recompute what \"selective\" does. -1: all layers. Fewer layers are faster and take more memory.",
              .value = "layers",
              .range = {.min = -1}},
        c.layers);
}

struct AnomalyConfig {
  std::string spike = "auto";
  std::int64_t max_rollbacks = 3;
  std::string remedy = "rollback";
};
template <FieldsOf<AnomalyConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "spike",
              .help = "Which losses count as a spike. auto: three in a row far above the spread of the last 100. A number: a "
                      "loss above this many times their median. off: none.",
              .value = "auto | off | NUMBER",
              .number = true},
        c.spike);
  visit(Field{.name = "max_rollbacks",
              .help = "How many times a run may go back to its last good checkpoint after a spike. One spike more ends it with "
                      "exit code 77.",
              .range = kNotNegative},
        c.max_rollbacks);
  visit(Field{.name = "remedy",
              .help = "rollback: nothing beyond the rollback; none is its older name. demote: after a rollback the linears whose input or "
                      "weight the last health sample found in danger compute in BF16. Checkpoints remember them.",
              .choices = "rollback | demote | none"},
        c.remedy);
}

// At most a year. Longer times would overflow counters.
inline constexpr Range kSecondsRange{.min = 0, .max = 31536000, .above_min = true};

struct CommConfig {
  double timeout_s = 300;
  double join_timeout_s = 300;
  double silence_s = 5;
  double stall_s = 60;
  std::string interface = "auto";
  std::string token;
};
template <FieldsOf<CommConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "timeout_s",
              .help = "How long a rank waits for the others in a collective, or for a value that another rank sets. A rank that dies is "
                      "noticed at once.",
              .value = "seconds", .range = kSecondsRange},
        c.timeout_s);
  visit(Field{.name = "join_timeout_s",
              .help = "How long the ranks wait for each other at the start.",
              .value = "seconds",
              .range = kSecondsRange},
        c.join_timeout_s);
  visit(Field{.name = "silence_s",
              .help = "A host whose supervisor (`octet launch --hosts`) says nothing for this long is lost.",
              .value = "seconds",
              .range = kSecondsRange},
        c.silence_s);
  visit(Field{.name = "stall_s",
              .help = "If no rank of a supervised run makes progress for this long, and for the time of ten steps, the "
                      "supervisor says which ranks hold up the others, writes the stacks of their threads to logs/ and starts "
                      "all ranks again (code 80).",
              .value = "seconds",
              .range = kSecondsRange},
        c.stall_s);
  visit(
      Field{.name = "interface",
            .help =
                "Network interface of the job, by name or as a range of addresses (10.0.0.0/8); auto takes the one that leads to "
                "rank 0's host. NCCL takes a name, too, unless NCCL_SOCKET_IFNAME is set.",
            .value = "NAME|CIDR"},
      c.interface);
  visit(Field{.name = "token",
              .help = "\"none\" lets ranks on several hosts run without a token, so that anybody who reaches rank 0 can join. "
                      "The token itself is in OCTET_TOKEN_FILE or OCTET_TOKEN."},
        c.token);
}

struct MetricsConfig {
  std::int64_t log_freq = 10;
  bool tensorboard = true;
  std::int64_t health_freq = 100;
  std::int64_t port = 0;
  std::string address = "127.0.0.1";
};
template <FieldsOf<MetricsConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "log_freq",
              .help = "Steps between lines on the console and in metrics.jsonl. The first step, each health sample and each "
                      "evaluation have lines, too.",
              .value = "steps",
              .range = kAtLeastOne},
        c.log_freq);
  visit(Field{.name = "tensorboard", .help = "Writes TensorBoard events."}, c.tensorboard);
  visit(Field{.name = "health_freq",
              .help = "Steps between samples of FP8 health, and of the loads of experts. The first and the last step are "
                      "sampled, too. 0 takes none.",
              .value = "steps",
              .range = kNotNegative},
        c.health_freq);
  visit(Field{.name = "port",
              .help = "Port of the pages /metrics (OpenMetrics, for Prometheus) and /healthz, of rank 0 or of the supervisor of each host; "
                      "0 serves none.",
              .range = {.min = 0, .max = 65535}},
        c.port);
  visit(Field{.name = "address",
              .help = "Address where these pages are served. Anybody who reaches this address can read them; 0.0.0.0 is every "
                      "address of the machine.",
              .value = "ADDRESS"},
        c.address);
}

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  PrecisionConfig precision;
  std::optional<LoraConfig> lora;  // absent: the model itself is trained
  EvaluationConfig evaluation;
  ParallelConfig parallel;
  ActivationCheckpointConfig activation_checkpoint;
  CheckpointConfig checkpoint;
  AnomalyConfig anomaly;
  HealthConfig health;
  CommConfig comm;
  MetricsConfig metrics;

  std::string file;  // it was read from, for messages; no key
  // Paths that stand in keys for an s3:// URL, because they are copies of its objects (fetch.h), and those URLs. No key.
  std::map<std::string, std::string> copies;
};
template <FieldsOf<Config> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "run", .help = "Name, folder, device and seed of the run."}, c.run);
  visit(Field{.name = "model", .help = "Architecture of the model and its initial weights."}, c.model);
  visit(Field{.name = "data", .help = "Corpora, their weights and what is held out."}, c.data);
  visit(Field{.name = "training", .help = "Batch, sequence length and number of steps."}, c.training);
  visit(Field{.name = "optimizer", .help = "AdamW."}, c.optimizer);
  visit(Field{.name = "lr_scheduler", .help = "Learning rate over the run."}, c.lr_scheduler);
  visit(Field{.name = "precision", .help = "FP8 recipe and its settings."}, c.precision);
  visit(Field{.name = "lora", .help = "Adapters to train beside a frozen model; without this table the model itself is trained."},
        c.lora);
  visit(Field{.name = "evaluation", .help = "Held-out loss during the run, and what it decides."}, c.evaluation);
  visit(Field{.name = "parallel", .help = "How ranks share weights, batch, sequences and experts."}, c.parallel);
  visit(Field{.name = "activation_checkpoint", .help = "Memory saved by computing activations again."}, c.activation_checkpoint);
  visit(Field{.name = "checkpoint", .help = "When to save, what to keep and how to resume."}, c.checkpoint);
  visit(Field{.name = "anomaly", .help = "What happens after a loss spike."}, c.anomaly);
  visit(Field{.name = "health", .help = "How the run detects hardware that computes or stores wrong bits, or that is slow."},
        c.health);
  visit(Field{.name = "comm", .help = "How ranks find each other and how long they wait."}, c.comm);
  visit(Field{.name = "metrics", .help = "Logging."}, c.metrics);
}

// All of these throw Error{config}, in one line with the value and the file and line, or the option.

// `overrides` are "section.key=value" and are applied in order after the file. Checks keys, types, ranges and choices;
// check_config() checks combinations of keys.
Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});
// Do the same in two steps: read the text of the file, and parse it. `source` is the text's name in messages.
std::string read_config_text(const std::filesystem::path& path);
Config parse_config(std::string_view text, const std::string& source, std::span<const std::string> overrides = {});

// Sets "section.key=value". The value is TOML, or a bare string; a list may also be written a,b,c. The number of an element of
// a list of tables names the element ("data.source.0.path=corpus"). Messages begin with `option` and the assignment.
void apply_override(Config& config, const std::string& assignment, const std::string& option = "--");

// Visits the values of all keys that may be an s3:// URL of a model directory, an adapter, a checkpoint or a corpus.
void for_each_fetched_path(Config& config, const std::function<void(std::string& path)>& visit);
// Returns the configuration with the URLs in place of their copies.
Config as_given(Config config);

// Checks what no single key can: a model and data are given, batch sizes divide, and the axes of [parallel] give `ranks` ranks.
void check_config(const Config& config, std::int64_t ranks = 1);

// Returns a TOML document of all keys, which parse_config() reads back to an equal Config. Here and in to_json(), URLs replace
// their copies.
std::string print_config(const Config& config);
Json to_json(const Config& config);

// A key whose value differs between `config` and an earlier to_json(). Differences are in the order of the file. A key that is
// missing there had its default in that earlier version. checkpoint.resume, checkpoint.allow, run.set_aside and [comm] are
// never included, because they say how a process starts and waits. For messages on resuming.
struct Difference {
  std::string key;
  std::string before, now;  // as JSON; "" when not set
};
inline std::string in_words(const std::string& value) { return value.empty() ? "absent" : value; }
std::vector<Difference> differences(const Json& before, const Config& config);

// Returns the key that the user may have meant by an unknown one, which may be another program's name for it or lack its
// section; or "".
std::string nearest_key(const std::string& path);
// Returns " (did you mean optimizer.lr?)", or why there is no such key, or "".
std::string advise_key(const std::string& path);

// Returns the model's architecture: the preset, directory or keys of [model]. If the model directory does not exist any more,
// returns the architecture of the checkpoint from which the run continues. Throws Error{data} for a model directory's mistakes.
models::DecoderConfig decoder_config(const Config& config);
// Whether model.init_from is given but has no config.json (any more).
bool init_from_is_gone(const Config& config);
// Returns the names that [model] config accepts, in alphabetical order: "llama2-7b", "llama3.1-8b", ...
std::vector<std::string> preset_names();

// Returns all keys, in the order of --print-config.
const std::vector<KeyDescription>& config_keys();

}  // namespace octet::train
