#include "octet/models/decoder/names.h"
#include "octet/models/gpt_neox/gpt_neox.h"

namespace octet::models {

parallel::NameTable gpt_neox_names(Decoder& model) {
  const DecoderConfig& c = model.config();
  std::vector<parallel::RowRun> by_head;
  for (std::int64_t head = 0; head < c.heads; ++head) {
    for (std::int64_t part = 0; part < 3; ++part) {
      const std::int64_t begin = (part * c.heads + head) * c.head_dim;
      by_head.push_back({begin, begin + c.head_dim});
    }
  }
  parallel::NameTable table = parameter_names(model);
  for (parallel::NameEntry& entry : table) {
    if (entry.external.find(".query_key_value.") != std::string::npos) entry.rows = by_head;
  }
  return table;
}

}  // namespace octet::models
