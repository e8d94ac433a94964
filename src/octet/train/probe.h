// One model on given tokens, so that anybody can compare it with another implementation.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "octet/tensor/host_tensor.h"
#include "octet/train/engine.h"

namespace octet::train {

// Tokens [B, T] and their targets, -100 where none counts.
struct ProbeInput {
  std::int64_t batch = 0, seq_len = 0;
  std::vector<std::int32_t> tokens, targets;

  std::span<const std::int32_t> rows(const std::vector<std::int32_t>& of, std::int64_t begin, std::int64_t end) const {
    return std::span(of).subspan(static_cast<std::size_t>(begin * seq_len), static_cast<std::size_t>((end - begin) * seq_len));
  }
};
// Of a safetensors file with `tokens` and perhaps `targets`, as ProbeOptions has it. Throws Error{data}, and Error{config} where
// rows are longer than the model's.
ProbeInput read_probe_input(const std::filesystem::path& path, const models::DecoderConfig& config);
// Two rows of at most 64 tokens.
ProbeInput random_probe_input(const models::DecoderConfig& config, std::uint64_t seed);

// A mixture's balance counts in the loss where its config.json says output_router_logits.
void only_losses_of_transformers(models::DecoderConfig& model);

// `logits` [B, T, V], `loss` [1] and perhaps grad.<Hugging Face name>, all F32, by the engine's micro-batches, into which B
// divides. `source` is named where no target counts.
std::map<std::string, HostTensor> model_outputs(Engine& engine, const ProbeInput& input, bool grads, const std::string& source);

struct ProbeOptions {
  std::filesystem::path model;   // Hugging Face directory
  std::filesystem::path tokens;  // safetensors: `tokens` [B, T] I32 or I64; optional `targets` [B, T], -100 ignored
  std::filesystem::path output;  // safetensors: `logits` [B, T, V] F32, `loss` [1] F32 (mean over targets that count)
  DeviceKind device = DeviceKind::cpu;
  bool grads = false;            // also grad.<Hugging Face name> F32 of the mean loss
  std::int64_t steps = 0;        // train so many steps on the tokens: `losses` [steps]
  std::string dump;              // glob of linears whose operands, products and scales are written (train/dump.h)
  std::int64_t micro_batch_size = 0;  // rows of `tokens` to a micro-batch in training; 0: all
  double lr = 1e-3;
  EngineOptions engine;          // recipe, dtypes, optimizer; the rest is filled in
};

void probe(const ProbeOptions& options);

}  // namespace octet::train
