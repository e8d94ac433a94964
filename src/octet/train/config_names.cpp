// Other programs' names for our keys: an unknown key is answered with ours.
#include <algorithm>
#include <map>
#include <set>

#include "octet/base/names.h"
#include "octet/train/config.h"

namespace octet::train {
namespace {

// The last part of a foreign key, in lower case with '_' for '-', and our key. Names that one of our sections also has are found there.
const std::map<std::string, std::string, std::less<>>& foreign_names() {
  static const std::map<std::string, std::string, std::less<>> names = {
      // axolotl and Hugging Face
      {"learning_rate", "optimizer.lr"},
      {"base_model", "model.init_from"},
      {"model_name_or_path", "model.init_from"},
      {"pretrained_model_name_or_path", "model.init_from"},
      {"model_path", "model.init_from"},
      {"per_device_train_batch_size", "training.micro_batch_size"},
      {"train_micro_batch_size_per_gpu", "training.micro_batch_size"},
      {"train_batch_size", "training.global_batch_size"},
      {"total_batch_size", "training.global_batch_size"},
      {"per_device_eval_batch_size", "training.micro_batch_size"},
      {"gradient_accumulation_steps", "training.global_batch_size"},
      {"num_epochs", "training.epochs"},
      {"num_train_epochs", "training.epochs"},
      {"max_steps", "training.steps"},
      {"max_iters", "training.steps"},
      {"num_steps", "training.steps"},
      {"sequence_len", "training.seq_len"},
      {"sequence_length", "training.seq_len"},
      {"max_seq_length", "training.seq_len"},
      {"max_seq_len", "training.seq_len"},
      {"max_length", "training.seq_len"},
      {"context_length", "training.seq_len"},
      {"block_size", "training.seq_len"},
      {"warmup_ratio", "lr_scheduler.warmup_steps"},
      {"lr_scheduler_type", "lr_scheduler.decay"},
      {"lr_scheduler", "lr_scheduler.decay"},
      {"scheduler", "lr_scheduler.decay"},
      {"adam_beta1", "optimizer.betas"},
      {"adam_beta2", "optimizer.betas"},
      {"beta1", "optimizer.betas"},
      {"beta2", "optimizer.betas"},
      {"adam_epsilon", "optimizer.eps"},
      {"adam_eps", "optimizer.eps"},
      {"epsilon", "optimizer.eps"},
      {"gradient_clipping", "optimizer.max_grad_norm"},
      {"grad_clip", "optimizer.max_grad_norm"},
      {"gradient_checkpointing", "activation_checkpoint.mode"},
      {"datasets", "data.source.path"},
      {"dataset", "data.source.path"},
      {"dataset_path", "data.source.path"},
      {"dataset_prepared_path", "data.source.path"},
      {"train_file", "data.source.path"},
      {"val_set_size", "data.split"},
      {"test_datasets", "data.source.split"},
      {"validation_file", "data.source.split"},
      {"sample_packing", "data.packing"},
      {"eval_steps", "evaluation.interval"},
      {"evals_per_epoch", "evaluation.interval"},
      {"load_best_model_at_end", "evaluation.keep_best"},
      {"metric_for_best_model", "evaluation.decides"},
      {"early_stopping_patience", "evaluation.patience"},
      {"save_steps", "checkpoint.interval"},
      {"saves_per_epoch", "checkpoint.interval"},
      {"save_total_limit", "checkpoint.keep_latest_k"},
      {"resume_from_checkpoint", "checkpoint.resume"},
      {"logging_steps", "metrics.log_freq"},
      {"report_to", "metrics.tensorboard"},
      {"random_seed", "run.seed"},
      {"fp8", "precision.recipe"},
      {"float8", "precision.recipe"},
      {"bf16", "precision.recipe"},
      {"dtype", "precision.recipe"},
      {"torch_dtype", "precision.recipe"},
      {"mixed_precision", "precision.recipe"},
      // PEFT and axolotl
      {"lora_r", "lora.rank"},
      {"r", "lora.rank"},
      {"lora_alpha", "lora.alpha"},
      {"lora_dropout", "lora.dropout"},
      {"target_modules", "lora.targets"},
      {"lora_target_modules", "lora.targets"},
      {"lora_target_linear", "lora.targets"},
      {"use_rslora", "lora.rslora"},
      {"peft_use_rslora", "lora.rslora"},
      {"lora_model_dir", "lora.init_from"},
      // Megatron and NeMo
      {"lr_warmup_iters", "lr_scheduler.warmup_steps"},
      {"lr_warmup_steps", "lr_scheduler.warmup_steps"},
      {"lr_warmup_fraction", "lr_scheduler.warmup_steps"},
      {"lr_warmup_samples", "lr_scheduler.warmup_steps"},
      {"lr_decay_style", "lr_scheduler.decay"},
      {"lr_decay_iters", "training.steps"},
      {"min_lr", "lr_scheduler.min_lr_factor"},
      {"train_iters", "training.steps"},
      {"seq_length", "training.seq_len"},
      {"encoder_seq_length", "training.seq_len"},
      {"clip_grad", "optimizer.max_grad_norm"},
      {"num_layers", "model.num_hidden_layers"},
      {"layers", "model.num_hidden_layers"},
      {"ffn_hidden_size", "model.intermediate_size"},
      {"num_query_groups", "model.num_key_value_heads"},
      {"kv_channels", "model.head_dim"},
      {"norm_epsilon", "model.rms_norm_eps"},
      {"layernorm_epsilon", "model.rms_norm_eps"},
      {"rotary_base", "model.rope_theta"},
      {"init_method_std", "model.initializer_range"},
      {"untie_embeddings_and_output_weights", "model.tie_word_embeddings"},
      {"tokenizer_model", "model.tokenizer"},
      {"data_path", "data.source.path"},
      {"train_data_path", "data.source.path"},
      {"valid_data_path", "data.source.split"},
      {"save", "run.output_dir"},
      {"load", "checkpoint.resume"},
      {"save_interval", "checkpoint.interval"},
      {"eval_interval", "evaluation.interval"},
      {"eval_iters", "evaluation.sequences"},
      {"log_interval", "metrics.log_freq"},
      {"tensorboard_dir", "metrics.tensorboard"},
      {"fp8_recipe", "precision.recipe"},
      {"fp8_format", "precision.format"},
      {"fp8_margin", "precision.margin"},
      {"fp8_amax_history_len", "precision.amax_history_len"},
      {"fp8_amax_compute_algo", "precision.amax_compute_algo"},
      {"fp8_wgrad", "precision.wgrad"},
      {"recompute_granularity", "activation_checkpoint.mode"},
      {"recompute_activations", "activation_checkpoint.mode"},
      {"recompute_num_layers", "activation_checkpoint.layers"},
      {"tensor_model_parallel_size", "parallel.tensor"},
      {"tensor_parallel_size", "parallel.tensor"},
      {"context_parallel_size", "parallel.context"},
      {"pipeline_model_parallel_size", "parallel.pipeline"},
      {"num_layers_per_virtual_pipeline_stage", "parallel.pipeline_chunks"},
      {"virtual_pipeline_model_parallel_size", "parallel.pipeline_chunks"},
      {"expert_model_parallel_size", "parallel.expert"},
      {"reset_attention_mask", "data.document_mask"},
      // torchtitan and nanoGPT
      {"job", "run"},
      {"dump_folder", "run.output_dir"},
      {"folder", "run.output_dir"},
      {"init_timeout_seconds", "comm.join_timeout_s"},
      {"train_timeout_seconds", "comm.timeout_s"},
      {"selective_ac_option", "activation_checkpoint.mode"},
      {"flavor", "model.config"},
      {"enable_checkpoint", "checkpoint.interval"},
      {"local_batch_size", "training.micro_batch_size"},
      {"batch_size", "training.global_batch_size"},
      {"max_norm", "optimizer.max_grad_norm"},
      {"decay_type", "lr_scheduler.decay"},
      {"lr_min", "lr_scheduler.min_lr_factor"},
      {"decay_ratio", "lr_scheduler.decay"},
      {"enable_tensorboard", "metrics.tensorboard"},
      {"data_parallel_shard_degree", "parallel.shard"},
      {"hybrid_shard_degree", "parallel.shard"},
      {"data_parallel_replicate_degree", "parallel.replicate"},
      {"tensor_parallel_degree", "parallel.tensor"},
      {"context_parallel_degree", "parallel.context"},
      {"pipeline_parallel_degree", "parallel.pipeline"},
      {"expert_parallel_degree", "parallel.expert"},
      {"n_layer", "model.num_hidden_layers"},
      {"n_layers", "model.num_hidden_layers"},
      {"n_head", "model.num_attention_heads"},
      {"n_heads", "model.num_attention_heads"},
      {"n_kv_heads", "model.num_key_value_heads"},
      {"n_embd", "model.hidden_size"},
      {"dim", "model.hidden_size"},
      {"norm_eps", "model.rms_norm_eps"},
      // Transformer Engine
      {"override_linear_precision", "precision.wgrad"},
      {"amax_history_length", "precision.amax_history_len"},
      {"fp8_dpa", "precision.attention"},
      {"amax_reduction", "precision.reduce_amax"},
      {"first_last_layers_bf16", "precision.skip"},
      {"num_layers_at_start_in_bf16", "precision.skip"},
      {"num_layers_at_end_in_bf16", "precision.skip"},
  };
  return names;
}

// Keys of other programs that have no counterpart here, whole or the last part alone, and what to know instead.
const std::map<std::string, std::string, std::less<>>& foreign_notes() {
  static const std::map<std::string, std::string, std::less<>> notes = {
      {"dropout", "octet drops only inputs of adapters, with lora.dropout"},
      {"delayed_param", "octet always creates parameters shard by shard"},
      {"delayed_parameter_initialization", "octet always creates parameters shard by shard"},
      {"sequence_parallel", "parallel.tensor always divides the tokens, too"},
      {"enable_sequence_parallel", "parallel.tensor always divides the tokens, too"},
      {"sm_activation_offloading", "octet does not offload activations; activation_checkpoint.mode saves their memory"},
      {"activation_offloading", "octet does not offload activations; activation_checkpoint.mode saves their memory"},
      {"optimizer.name", "octet has one optimizer, AdamW"},
      {"fused", "octet has one implementation of AdamW"},
      {"implementation", "octet has one implementation of AdamW"},
      {"compile", "octet does not compile models; the program contains all kernels"},
      {"profiling", "`octet bench step RUN.toml` measures a step, kernel by kernel"},
      {"enable_profiling", "`octet bench step RUN.toml` measures a step, kernel by kernel"},
      {"cpu_offloading", "octet does not offload activations; activation_checkpoint.mode saves their memory"},
  };
  return notes;
}

std::string last_part(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

// A key of a section, or the name of a table in it.
std::string first_part(std::string_view path) { return std::string(path.substr(0, path.find('.'))); }

// The only candidate that begins with `name`, as "evaluation" with "eval", otherwise the nearest, or "".
std::string completed_or_nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::set<std::string> longer;
  for (const std::string& candidate : candidates) {
    if (name.size() >= 2 && candidate.starts_with(name)) longer.insert(candidate);
  }
  return longer.size() == 1 ? *longer.begin() : nearest_name(name, candidates);
}

constexpr std::size_t kLongEnough = 4;  // letters of a name in which one wrong letter is a slip

// Returns " ([comm] has timeout_s, join_timeout_s, ...)" for a key of one of our sections, else "".
std::string keys_beside(std::string_view path) {
  const std::string section = first_part(path);
  std::string list;
  std::set<std::string> listed;
  for (const KeyDescription& key : config_keys()) {
    if (!key.path.starts_with(section + ".")) continue;
    const std::string name = first_part(std::string_view(key.path).substr(section.size() + 1));
    if (listed.insert(name).second) list += (list.empty() ? "" : ", ") + name;
  }
  return list.empty() || path == section ? "" : concat(" ([", section, "] has ", list, ")");
}

std::string normalised(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));  // "--micro-batch-size"
  std::string result;
  for (const char c : name) result += c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

}  // namespace

std::string nearest_key(const std::string& path) {
  static const std::vector<std::string> paths = [] {
    std::vector<std::string> result;
    for (const KeyDescription& key : config_keys()) result.push_back(key.path);
    return result;
  }();
  const std::string full = normalised(path), name = last_part(full);
  if (std::find(paths.begin(), paths.end(), full) != paths.end()) return full;
  const auto foreign = foreign_names().find(name);
  if (foreign != foreign_names().end()) return foreign->second;
  for (const std::string& known : paths) {
    if (last_part(known) == name) return known;  // ours, in another section
  }
  const std::string section = full.substr(0, full.size() - name.size());
  for (const std::string& known : paths) {
    if (section.empty() && name.size() >= kLongEnough && edit_distance(last_part(known), name) == 1) return known;
  }
  std::vector<std::string> siblings, sections;
  for (const std::string& known : paths) {
    if (!section.empty() && known.starts_with(section)) siblings.push_back(first_part(known.substr(section.size())));
    sections.push_back(first_part(known));
  }
  const std::string sibling = completed_or_nearest(name, siblings);
  if (!sibling.empty()) return section + sibling;
  if (section.empty()) return completed_or_nearest(full, sections);
  return nearest_name(full, paths);
}

std::string advise_key(const std::string& path) {
  const std::string full = normalised(path);
  for (const std::string& part : {full, last_part(full)}) {
    if (const auto note = foreign_notes().find(part); note != foreign_notes().end()) return " (" + note->second + ")";
  }
  const std::string name = nearest_key(path);
  return name.empty() ? keys_beside(full) : " (did you mean " + name + "?)";
}

}  // namespace octet::train
