// GPT-Neo (Black et al., 2021), as transformers' GPTNeoForCausalLM has it: learned positions, layer norms with biases, GELU, and
// attention whose scores are not scaled; every second layer sees only a window.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

bool sees_all(const nlohmann::json& kind, const char* key, const JsonReader& read) {
  demand(kind == "global" || kind == "local", ExitCode::data, read.source(), ": ", key, " has ", shown(kind),
         ": must be \"global\" or \"local\"");
  return kind == "global";
}

// attention_layers has an entry for each layer. attention_types has [KINDS, N] for N repetitions of KINDS. Without either, global
// and local layers take turns.
std::vector<bool> layers_that_see_all(const JsonReader& read, std::int64_t layers) {
  std::vector<bool> result;
  const char* const key = read.has("attention_layers") ? "attention_layers" : "attention_types";
  const auto list_of = [&](const char* key) -> const nlohmann::json& {
    const nlohmann::json& list = read.object()[key];
    demand(list.is_array(), ExitCode::data, read.source(), ": ", key, " = ", shown(list), ": must be a list");
    return list;
  };
  if (read.has("attention_layers")) {
    for (const nlohmann::json& kind : list_of(key)) result.push_back(sees_all(kind, key, read));
  } else if (read.has("attention_types")) {
    for (const nlohmann::json& entry : list_of(key)) {
      demand(entry.is_array() && entry.size() == 2 && entry[0].is_array() && entry[1].is_number_integer() && entry[1] > 0 &&
                 entry[1] <= layers,
             ExitCode::data, read.source(), ": attention_types has ", shown(entry), ": must be a list of kinds and a number");
      for (std::int64_t i = 0; i < entry[1].get<std::int64_t>(); ++i) {
        for (const nlohmann::json& kind : entry[0]) result.push_back(sees_all(kind, key, read));
      }
    }
  } else {
    for (std::int64_t layer = 0; layer < layers; ++layer) result.push_back(layer % 2 == 0);
  }
  demand(static_cast<std::int64_t>(result.size()) == layers, ExitCode::data, read.source(), ": ", key, " names ", result.size(),
         " layers, and num_layers = ", layers);
  return result;
}

DecoderConfig parse_gpt_neo(const JsonReader& read) {
  const auto named = [&](const char* key, const char* general) { return read.integer(read.has(general) ? general : key); };
  DecoderConfig c;
  c.vocab = read.integer("vocab_size");
  c.dim = read.integer("hidden_size");
  check_dim(c.dim, read.source());
  c.ffn = read.integer("intermediate_size", 4 * c.dim);
  c.layers = named("num_layers", "num_hidden_layers");
  c.heads = c.kv_heads = named("num_heads", "num_attention_heads");
  demand(c.heads > 0 && c.dim % c.heads == 0, ExitCode::data, read.source(), ": hidden_size = ", c.dim,
         " is not a multiple of num_heads = ", c.heads);
  c.head_dim = c.dim / c.heads;
  c.max_position = read.integer("max_position_embeddings", 2048);
  c.learned_positions = true;
  c.attention_scale = 1.0;
  c.sliding_window = read.integer("window_size", 256);
  demand(c.sliding_window > 0, ExitCode::data, read.source(), ": window_size = ", c.sliding_window, ": must be positive");
  check_layers(c.layers, "num_layers", read.source());
  c.sees_all = layers_that_see_all(read, c.layers);
  c.norm = nn::NormKind::layer;
  c.norm_epsilon = read.number("layer_norm_epsilon", 1e-5);
  demand(c.norm_epsilon > 0, ExitCode::data, read.source(), ": layer_norm_epsilon = ", c.norm_epsilon, ": must be positive");
  c.output_bias = c.mlp_bias = true;
  c.gelu = parse_gelu(read, "activation_function", "gelu_new");
  c.tied_head = read.boolean("tie_word_embeddings", true);
  c.init_std = read.number("initializer_range", 0.02);
  c.tokenizer = read.string("tokenizer", "");
  refuse_dropout(read, {"attention_dropout", "embed_dropout", "resid_dropout"});
  return c;
}

nlohmann::ordered_json write_gpt_neo(const DecoderConfig& c) {
  nlohmann::ordered_json object = {
      {"architectures", {"GPTNeoForCausalLM"}},
      {"model_type", "gpt_neo"},
      {"vocab_size", c.vocab},
      {"hidden_size", c.dim},
      {"intermediate_size", c.ffn},
      {"num_layers", c.layers},
      {"num_hidden_layers", c.layers},  // under both names, as transformers reads them
      {"num_heads", c.heads},
      {"num_attention_heads", c.heads},
      {"max_position_embeddings", c.max_position},
      {"window_size", c.sliding_window},
      {"layer_norm_epsilon", c.norm_epsilon},
      {"activation_function", write_gelu(*c.gelu, "gelu_new")},
      {"attention_dropout", 0.0},
      {"embed_dropout", 0.0},
      {"resid_dropout", 0.0},
      {"tie_word_embeddings", c.tied_head},
      {"initializer_range", c.init_std},
      {"torch_dtype", "bfloat16"},
  };
  // transformers makes attention_layers of attention_types, of which each entry here is one layer.
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const char* const kind = c.window(layer) == 0 ? "global" : "local";
    object["attention_layers"].push_back(kind);
    object["attention_types"].push_back({nlohmann::ordered_json::array({kind}), 1});
  }
  if (!c.tokenizer.empty()) object["tokenizer"] = c.tokenizer;
  return object;
}

}  // namespace

Family gpt_neo_family() {
  return {.model_type = "gpt_neo",
          .parse = parse_gpt_neo,
          .write = write_gpt_neo,
          .modules = {.embedding = "transformer.wte",
                      .final_norm = "transformer.ln_f",
                      .positions = "transformer.wpe",
                      .blocks = "transformer.h",
                      .attention = "attn.attention",
                      .attention_norms = {.before = "ln_1"},
                      .feed_forward_norms = {.before = "ln_2"},
                      .up = {"c_fc"},
                      .output = "out_proj",
                      .down = "c_proj"},
          .ignorable = {"*.attn.attention.bias", "*.attn.attention.masked_bias"}};
}

}  // namespace octet::models
