#pragma once

#include "octet/models/decoder/decoder.h"

namespace octet::models {

// Every parameter by its name, which is that of its Hugging Face tensor; of a fused linear each part's, a run of rows.
parallel::NameTable parameter_names(Decoder& model);

}  // namespace octet::models
