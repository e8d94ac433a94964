// One model on given tokens, so that anybody can compare it with another implementation.
#pragma once

#include <filesystem>
#include <string>

#include "octet/train/engine.h"

namespace octet::train {

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
