#pragma once

#include "octet/models/decoder/decoder.h"

namespace octet::models {

// Every parameter by its name, which is that of its Hugging Face tensor; of a fused linear each part's, a run of rows. Without
// adapters.
parallel::NameTable parameter_names(Decoder& model);

// The adapters by the names of PEFT, with the runs of rows of B as those of the weights in `names`.
parallel::NameTable adapter_names(Decoder& model, const parallel::NameTable& names);

// "model.layers.3.mlp.down_proj" -> "model.layers.*.mlp.down_proj": what layers of one kind share. A name without a layer stays.
std::string kind_pattern(const std::string& module);

}  // namespace octet::models
