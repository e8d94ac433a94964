// Groups the linears of a model by kind. The linears of a kind have the same shape and the same ops that make their operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/models/decoder/decoder.h"

namespace octet::plan {

using models::Producer;

struct LinearKind {
  std::string name;     // as in models::LinearUse
  std::string pattern;  // pattern of the layers' names for precision.skip: "model.layers.*.self_attn.o_proj"
  std::int64_t out = 0, in = 0;  // shape of the weight [out, in], or of an expert's
  std::int64_t experts = 0;      // of a layer, whose linears are one grouped linear; 0: no linear of experts
  std::int64_t layers = 0;       // number of linears of this kind
  Producer x = Producer::none, g = Producer::none;  // producers of the input X and of the output gradient G
  parallel::Cut cut = parallel::Cut::none;          // of the weight on the tensor axis
  bool residual = false;                            // the product adds to the residual stream
  bool bias = false;
  bool frozen = false;
  std::int64_t adapter_rank = 0;  // of the adapters of all its modules together; 0: it has none
  bool quantisable = true;  // false: FP8 does not support the dims, so the layers stay in BF16 in every recipe
};

// Returns the kinds in the order of the forward pass; the head is last.
std::vector<LinearKind> linear_kinds(models::Decoder& model);

// Returns the number of linears of each kind that the model's recipe computes in FP8, without those named in `except`. The name
// of one expert's linear stands for those of all experts of its layer.
std::vector<std::int64_t> fp8_layers(models::Decoder& model, const std::vector<LinearKind>& kinds,
                                     const std::vector<std::string>& except = {});

}  // namespace octet::plan
