// GPT-NeoX (Black et al., 2022) and Pythia (Biderman et al., 2023), as transformers' GPTNeoXForCausalLM has them: layer norms
// with biases, linears with biases, GELU, rotation of a part of each head, and attention beside the feed-forward layer or before
// it.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_gpt_neox(const JsonReader& read) {
  DecoderConfig c;
  c.vocab = read.integer("vocab_size");
  c.dim = read.integer("hidden_size");
  c.ffn = read.integer("intermediate_size");
  c.layers = read.integer("num_hidden_layers");
  c.heads = c.kv_heads = read.integer("num_attention_heads");
  demand(c.heads > 0 && c.dim % c.heads == 0, ExitCode::data, read.source(), ": hidden_size = ", c.dim,
         " is not a multiple of num_attention_heads = ", c.heads);
  c.head_dim = c.dim / c.heads;
  c.max_position = read.integer("max_position_embeddings", 2048);
  c.norm = nn::NormKind::layer;
  c.norm_epsilon = read.number("layer_norm_eps", 1e-5);
  c.tied_head = read.boolean("tie_word_embeddings", false);
  c.init_std = read.number("initializer_range", 0.02);
  c.tokenizer = read.string("tokenizer", "");
  c.parallel_residual = read.boolean("use_parallel_residual", true);
  c.qkv_bias = c.output_bias = read.boolean("attention_bias", true);
  c.mlp_bias = true;

  c.rope_theta = read.number("rotary_emb_base", 10000.0);
  parse_rope(read, c);
  parse_rotary_share(read, "rotary_pct", 0.25, c);

  c.gelu = parse_gelu(read, "hidden_act", "gelu");
  refuse_dropout(read, {"attention_dropout", "hidden_dropout"});
  return c;
}

nlohmann::ordered_json write_gpt_neox(const DecoderConfig& c) {
  nlohmann::ordered_json object = {
      {"architectures", {"GPTNeoXForCausalLM"}},
      {"model_type", "gpt_neox"},
      {"vocab_size", c.vocab},
      {"hidden_size", c.dim},
      {"intermediate_size", c.ffn},
      {"num_hidden_layers", c.layers},
      {"num_attention_heads", c.heads},
      {"max_position_embeddings", c.max_position},
      {"layer_norm_eps", c.norm_epsilon},
      {"rotary_pct", rotary_share(c)},
      {"rotary_emb_base", c.rope_theta},
      {"use_parallel_residual", c.parallel_residual},
      {"hidden_act", write_gelu(*c.gelu, "gelu_pytorch_tanh")},
      {"attention_bias", c.qkv_bias},
      {"attention_dropout", 0.0},
      {"hidden_dropout", 0.0},
      {"tie_word_embeddings", c.tied_head},
      {"initializer_range", c.init_std},
      {"torch_dtype", "bfloat16"},
  };
  if (c.rope_scaling) object["rope_scaling"] = write_rope_scaling(*c.rope_scaling);
  if (!c.tokenizer.empty()) object["tokenizer"] = c.tokenizer;
  return object;
}

// query_key_value has the rows [H, 3, K]: query, key and value of one head after the other. Ours has all queries, then all keys,
// then all values.
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

}  // namespace

Family gpt_neox_family() {
  return {.model_type = "gpt_neox",
          .parse = parse_gpt_neox,
          .write = write_gpt_neox,
          .names = gpt_neox_names,
          .modules = {.embedding = "gpt_neox.embed_in",
                      .final_norm = "gpt_neox.final_layer_norm",
                      .head = "embed_out",
                      .blocks = "gpt_neox.layers",
                      .attention = "attention",
                      .qkv = {"query_key_value"},
                      .up = {"dense_h_to_4h"},
                      .output = "dense",
                      .down = "dense_4h_to_h"},
          .ignorable = {"*.attention.bias", "*.attention.masked_bias"}};
}

}  // namespace octet::models
