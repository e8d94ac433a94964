// The linears of a model by kind: what the layers of one kind share, and the ops that make their operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/models/decoder/decoder.h"

namespace octet::plan {

// The op before a linear, which writes codes of its result in the place of values where it can.
enum class Producer : std::uint8_t {
  none,           // values that exist: the linear casts them itself
  norm,           // forward
  swiglu,         // forward
  gelu,           // forward
  rope_backward,  // of packed QKV
  norm_backward,  // writes codes beside its values, which the residual stream needs
  swiglu_backward,
  gelu_backward,
};

struct LinearKind {
  std::string name;     // "qkv", "o", "gate_up", "up", "down", "head"
  std::string pattern;  // of its layers' names, as precision.skip takes it: "model.layers.*.self_attn.o_proj"
  std::int64_t out = 0, in = 0;
  std::int64_t layers = 0;  // linears of this kind
  Producer x = Producer::none, g = Producer::none;
  bool residual = false;    // adds to the residual stream
  bool bias = false;
  bool quantisable = true;  // dims that FP8 takes; else its layers are in BF16 in every recipe
};

// In the order of the forward pass, the head last.
std::vector<LinearKind> linear_kinds(models::Decoder& model);

// How many linears of each kind the model's recipe computes in FP8.
std::vector<std::int64_t> fp8_layers(models::Decoder& model, const std::vector<LinearKind>& kinds);

}  // namespace octet::plan
