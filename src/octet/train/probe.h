// Runs a model on given tokens and writes its outputs, so that they can be compared with another implementation.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "octet/tensor/host_tensor.h"
#include "octet/train/engine.h"

namespace octet::train {

// Tokens [B, T] and targets [B, T]. A target of -100 does not count in the loss.
struct ProbeInput {
  std::int64_t batch = 0, seq_len = 0;
  std::vector<std::int32_t> tokens, targets;

  std::span<const std::int32_t> rows(const std::vector<std::int32_t>& of, std::int64_t begin, std::int64_t end) const {
    return std::span(of).subspan(static_cast<std::size_t>(begin * seq_len), static_cast<std::size_t>((end - begin) * seq_len));
  }
};
// Reads a safetensors file in the format of ProbeOptions::tokens. Without `targets`, each target is the next token of the row, and the last
// position of a row has none. Throws Error{data} for an invalid file, and Error{config} if rows are longer than the model permits.
ProbeInput read_probe_input(const std::filesystem::path& path, const models::DecoderConfig& config);
// Makes two rows of 64 random tokens, or fewer if the model permits only shorter sequences.
ProbeInput random_probe_input(const models::DecoderConfig& config, std::uint64_t seed);

// Makes the loss the same as in transformers, where the router of a mixture of experts has no z loss, and its balance loss counts
// only if config.json sets output_router_logits.
void only_losses_of_transformers(models::DecoderConfig& model);

// Returns `logits` [B, T, V], `loss` [1] and, if `grads`, grad.<Hugging Face name>, all F32. The engine's micro_batch_size must divide B.
// Throws Error{data} that names `source` if no target counts.
std::map<std::string, HostTensor> model_outputs(Engine& engine, const ProbeInput& input, bool grads, const std::string& source);

struct ProbeOptions {
  std::filesystem::path model;      // Hugging Face directory, or adapter directory of PEFT
  std::filesystem::path tokens;     // safetensors: `tokens` [B, T] I32 or I64; optional `targets` [B, T], where -100 is ignored
  std::filesystem::path calibrate;  // like `tokens`, of any shape: what scales of delayed scaling are set from; empty: `tokens`
  std::filesystem::path output;     // safetensors: `logits` [B, T, V] F32, `loss` [1] F32 (mean over targets that count)
  DeviceKind device = DeviceKind::cpu;
  bool grads = false;            // also writes grad.<name in the files> F32, the gradients of the mean loss
  std::int64_t steps = 0;        // trains this many steps on the tokens and writes `losses` [steps]
  std::string dump;              // glob of linears whose operands, products and scales are written (train/dump.h)
  std::int64_t micro_batch_size = 0;  // rows of `tokens` in a micro-batch; 0: all rows
  double lr = 1e-3;
  EngineOptions engine;          // recipe, whether it calibrates, dtypes and optimizer; probe() sets the other options
};
// Runs the model and writes `output`. Throws Error{data} and Error{config}.

void probe(const ProbeOptions& options);

}  // namespace octet::train
