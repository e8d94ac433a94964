// OLMo 2 (OLMo Team, 2 OLMo 2 Furious, 2025), as transformers' Olmo2ForCausalLM has it: Llama with the norms after attention and
// the feed-forward layer instead of before them, and with an RMSNorm over all of Q and one over all of K.
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_olmo2(const JsonReader& read) {
  DecoderConfig c = parse_decoder(read, {.max_position = 2048, .norm_epsilon = 1e-5});
  c.qk_norm = nn::QkNorm::whole;
  c.qkv_bias = c.output_bias = read.boolean("attention_bias", false);
  return c;
}

nlohmann::ordered_json write_olmo2(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "Olmo2ForCausalLM");
  object["attention_bias"] = c.qkv_bias;
  return object;
}

}  // namespace

Family olmo2_family() {
  return {.model_type = "olmo2",
          .parse = parse_olmo2,
          .write = write_olmo2,
          .modules = {.attention_norms = {.after = "post_attention_layernorm"},
                      .feed_forward_norms = {.after = "post_feedforward_layernorm"}}};
}

}  // namespace octet::models
