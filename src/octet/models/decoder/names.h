// The names of a decoder's tensors in the files of Hugging Face.
#pragma once

#include "octet/models/decoder/decoder.h"

namespace octet::models {

// Returns an entry for each parameter but those of adapters. A parameter has the name of its Hugging Face tensor. A fused linear
// has an entry for each of its parts, which is a run of its rows.
parallel::NameTable parameter_names(Decoder& model);

// The adapters by the names of PEFT, with the runs of rows of B as those of the weights in `names`.
parallel::NameTable adapter_names(Decoder& model, const parallel::NameTable& names);

// "model.layers.3.mlp.down_proj" -> "model.layers.*.mlp.down_proj": what layers of one kind share. Names outside
// the blocks stay.
std::string kind_pattern(const Decoder& model, const std::string& module);

}  // namespace octet::models
