// What the model does around a linear: for octet::plan, which predicts and measures linears one by one.
#pragma once

#include <cstdint>

#include "octet/nn/linear.h"

namespace octet::models {

// The op that makes an operand of a linear. It writes FP8 codes instead of values if it can.
enum class Producer : std::uint8_t {
  none,           // the values already exist and the linear casts them itself
  norm,           // norm forward
  swiglu,         // SwiGLU forward
  gelu,           // GELU forward
  rope_backward,  // RoPE backward of packed QKV
  norm_backward,  // norm backward; writes codes and values, because the residual stream needs the values
  swiglu_backward,
  gelu_backward,
};

struct LinearUse {
  nn::LinearWeight* linear;
  const char* kind;                                 // "qkv", "o", "gate_up", "up", "down", "head"
  Producer x = Producer::none, g = Producer::none;  // producers of the input X and of the output gradient G
  bool residual = false;                            // the product adds to the residual stream
};

}  // namespace octet::models
