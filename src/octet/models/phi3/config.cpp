// Phi-3 (Abdin et al., 2024) and Phi-4 (Abdin et al., 2024), as transformers' Phi3ForCausalLM has them: Llama with one tensor for
// Q, K and V and one for gate and up, a sliding window if the config names one, and rotation of a part of each head.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_phi3(const JsonReader& read) {
  DecoderConfig c = parse_decoder(read, {.max_position = 4096, .norm_epsilon = 1e-5, .rotates_parts = true});
  if (c.rope_scaling) {  // transformers takes yarn for longrope, and refuses all others
    const std::string type = write_rope_scaling(*c.rope_scaling)["rope_type"];
    fail(ExitCode::data, read.source(), ": rope_scaling of type \"", type,
         "\" is not supported: transformers knows only longrope for phi3, and octet does not");
  }
  c.sliding_window = read.integer("sliding_window", 0);
  parse_rotary_share(read, "partial_rotary_factor", 1.0, c);
  refuse_dropout(read, {"embd_pdrop", "resid_pdrop"});
  return c;
}

nlohmann::ordered_json write_phi3(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "Phi3ForCausalLM");
  object["partial_rotary_factor"] = rotary_share(c);
  write_sliding_window(c, object);
  return object;
}

}  // namespace

Family phi3_family() {
  return {
      .model_type = "phi3", .parse = parse_phi3, .write = write_phi3, .modules = {.qkv = {"qkv_proj"}, .up = {"gate_up_proj"}}};
}

}  // namespace octet::models
