#include "octet/models/llama/llama.h"

namespace octet::models {

parallel::NameTable llama_names(Decoder& model) {
  const DecoderConfig& c = model.config();
  parallel::NameTable table;
  const auto whole = [&](parallel::Parameter& p, const std::string& name) {
    const Shape& shape = p.cut.global();
    table.push_back({.external = name, .parameter = &p, .row_begin = 0, .row_end = shape[0], .shape = shape});
  };
  // A fused linear: its parts are runs of rows.
  const auto fused = [&](nn::Linear& linear, const std::vector<std::int64_t>& rows) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      table.push_back({.external = linear.parts()[i] + ".weight",
                       .parameter = &linear.weight(),
                       .row_begin = begin,
                       .row_end = begin + rows[i],
                       .shape = {rows[i], linear.weight().cut.global()[1]}});
      begin += rows[i];
    }
  };
  whole(model.embedding(), "model.embed_tokens.weight");
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    Block& block = model.block(layer);
    const auto linears = block.linears();
    whole(block.norm1().weight(), block.norm1().weight().spec.name);
    fused(*linears[0], {q, kv, kv});
    fused(*linears[1], {c.dim});
    whole(block.norm2().weight(), block.norm2().weight().spec.name);
    fused(*linears[2], {c.ffn, c.ffn});
    fused(*linears[3], {c.dim});
  }
  whole(model.final_norm().weight(), "model.norm.weight");
  if (!c.tied_head) whole(model.linears().back()->weight(), "lm_head.weight");
  return table;
}

}  // namespace octet::models
