// The names of a decoder's tensors in the files of Hugging Face.
#pragma once

#include "octet/models/decoder/decoder.h"

namespace octet::models {

// Returns an entry for each parameter except those of adapters. A parameter has the name of its Hugging Face tensor. A fused
// linear has an entry for each of its parts, which is a run of its rows.
parallel::NameTable parameter_names(Decoder& model);

// Returns the names of the model's adapters in files of PEFT, Hugging Face's library for adapters. The runs of rows of B are those
// of the weights in names_of().
parallel::NameTable adapter_names(Decoder& model);

// Replaces the layer's number by a star: "model.layers.3.mlp.down_proj" -> "model.layers.*.mlp.down_proj". A name outside the
// blocks stays.
std::string kind_pattern(const Decoder& model, const std::string& module);

}  // namespace octet::models
